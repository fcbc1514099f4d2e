"""What the benchmarks share: works in turns, medians with quartiles, Markdown tables, fresh processes."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Quartiles of some figures."""

    low: float
    median: float
    high: float

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """`median (lower–upper)`."""
        low, median, high = (f"{scale * value:.{digits}f}" for value in self)
        return f"{median} ({low}–{high})"


def spread(values: Sequence[float]) -> Spread:
    """The quartiles; of fewer than three values the ends."""
    if len(values) < 3:
        return Spread(min(values), statistics.median(values), max(values))
    return Spread(*statistics.quantiles(values, method="inclusive"))


def ratios(a: Sequence[float], b: Sequence[float]) -> Spread:
    """Of a to b, each pair measured one after the other."""
    return spread([x / y for x, y in zip(a, b, strict=True)])


def in_turns(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work, in turns so that all meet the same machine; the first turn warms up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                taken[name].append(time.perf_counter() - start)
    return taken


def show(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A Markdown table."""
    headings = list(headings)
    print("\n| " + " | ".join(headings) + " |\n|---|" + "---:|" * (len(headings) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def parser(description: str | None, repeats: int, quick: int) -> argparse.ArgumentParser:
    """The options that every benchmark has; `--quick` takes so many repeats instead."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument(
        "--quick", dest="repeats", action="store_const", const=quick, help=f"repeat {quick} times"
    )
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


def write_json(path: Path | None, figures: Any) -> None:
    """The figures, where they are wanted."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")


def fresh(file: str, *words: object) -> Any:
    """What a benchmark's own file prints as JSON in a process of its own."""
    command = [sys.executable, file, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def begin_peak() -> None:
    """Let the peak of this process begin anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def high_water() -> int:
    """The peak of this process, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
