"""How long the parts of a run took: profile.md for people, profile.json for programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedmcc.config import Config, name_of
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.timing import REST, Clock, measuring

PARTS = (  # in the order of a round
    "messages",
    "receive",
    "prepare",
    "views",
    "forward",
    "loss",
    "backward",
    "optimiser",
    "after step",
    "reply",
    "admission",
    "averaging",
    "checkpoint",
    "scoring",
    REST,
)


@contextmanager
def profiling(config: Config) -> Iterator[Clock]:
    """Measure the time of each part; on CUDA, wait for the device at the end of each part."""
    if (engine := name_of("engine", config.engine)) != "embedded":
        raise InputError(
            f"--profile measures clients in this process only, and engine.name is {engine}: "
            "add --set engine.name=embedded."
        )
    import torch

    on_cuda = torch.cuda.is_available() and config.general.device != "cpu"
    with measuring(torch.cuda.synchronize if on_cuda else None) as clock:
        yield clock


def write_profile(run: Run, clock: Clock) -> None:
    """Write both files, with the time up to now."""
    clock.mark()
    run.write_json("profile.json", as_json(clock))
    write_atomically(run.path / "profile.md", as_markdown(clock))


def as_json(clock: Clock) -> dict[str, Any]:
    """Seconds in total, by part, and by phase and part."""
    phases: dict[str, dict[str, float]] = {}
    for (phase, part), seconds in clock.seconds.items():
        phases.setdefault(phase, {})[part] = seconds
    return {"seconds": clock.total, "parts": clock.parts(), "chapters": phases}


def as_markdown(clock: Clock) -> str:
    """A table with a row per part: seconds, share of the total, and seconds of each phase."""
    parts, phases = clock.parts(), list(dict.fromkeys(phase for phase, _ in clock.seconds))
    names = [name for name in PARTS if name in parts] + [name for name in parts if name not in PARTS]
    lines = [
        f"# {clock.total:.1f} seconds",
        "",
        "Seconds by part and by stage; `before` and `after` are the time before and after all stages.",
        "`rest` is everything else: start-up, batching, building optimisers, terminal output.",
        "",
        "| part | seconds | share | " + " | ".join(phases) + " |",
        "|---|" + "---:|" * (2 + len(phases)),
    ]
    for name in names:
        by_phase = [clock.seconds.get((phase, name), 0.0) for phase in phases]
        lines.append(_row(name, parts[name], clock.total, by_phase))
    sums = [sum(clock.seconds.get((phase, name), 0.0) for name in names) for phase in phases]
    return "\n".join([*lines, _row("all", clock.total, clock.total, sums)]) + "\n"


def _row(name: str, seconds: float, total: float, by_phase: list[float]) -> str:
    cells = [name, f"{seconds:.2f}", f"{100 * seconds / max(total, 1e-9):.1f} %"]
    return "| " + " | ".join([*cells, *(f"{value:.2f}" if value else "" for value in by_phase)]) + " |"
