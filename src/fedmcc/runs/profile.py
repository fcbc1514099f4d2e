"""Where the time of a run went: profile.md for people, profile.json for programs."""

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
    """Measure what follows, waiting for an accelerator wherever a part of it ends."""
    if (engine := name_of("engine", config.engine)) != "embedded":
        raise InputError(
            f"--profile sees clients in this process, and engine.name is {engine}: "
            "add --set engine.name=embedded."
        )
    import torch

    on_cuda = torch.cuda.is_available() and config.general.device != "cpu"
    with measuring(torch.cuda.synchronize if on_cuda else None) as clock:
        yield clock


def write_profile(run: Run, clock: Clock) -> None:
    """Both files, of the time up to now."""
    clock.mark()
    run.write_json("profile.json", as_json(clock))
    write_atomically(run.path / "profile.md", as_markdown(clock))


def as_json(clock: Clock) -> dict[str, Any]:
    """Seconds in all, by part, and by chapter and part."""
    chapters: dict[str, dict[str, float]] = {}
    for (chapter, part), seconds in clock.seconds.items():
        chapters.setdefault(chapter, {})[part] = seconds
    return {"seconds": clock.total, "parts": clock.parts(), "chapters": chapters}


def as_markdown(clock: Clock) -> str:
    """A row per part: seconds and share of the whole, then seconds of each chapter."""
    parts, chapters = clock.parts(), list(dict.fromkeys(chapter for chapter, _ in clock.seconds))
    names = [name for name in PARTS if name in parts] + [name for name in parts if name not in PARTS]
    lines = [
        f"# {clock.total:.1f} seconds",
        "",
        "Seconds by part, and by stage; `before` and `after` are what comes before and after them.",
        "`rest` has no name of its own: starting, batching, building optimisers, drawing on the screen.",
        "",
        "| part | seconds | share | " + " | ".join(chapters) + " |",
        "|---|" + "---:|" * (2 + len(chapters)),
    ]
    for name in names:
        own = [clock.seconds.get((chapter, name), 0.0) for chapter in chapters]
        lines.append(_row(name, parts[name], clock.total, own))
    sums = [sum(clock.seconds.get((chapter, name), 0.0) for name in names) for chapter in chapters]
    return "\n".join([*lines, _row("all", clock.total, clock.total, sums)]) + "\n"


def _row(name: str, seconds: float, total: float, own: list[float]) -> str:
    cells = [name, f"{seconds:.2f}", f"{100 * seconds / max(total, 1e-9):.1f} %"]
    return "| " + " | ".join([*cells, *(f"{value:.2f}" if value else "" for value in own)]) + " |"
