"""Tools of the benchmarks: alternating measurements, medians with quartiles, tables, fresh processes."""

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
    """Median and quartiles."""

    low: float
    median: float
    high: float

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """`median (lower–upper)`."""
        low, median, high = (f"{scale * value:.{digits}f}" for value in self)
        return f"{median} ({low}–{high})"


def spread(values: Sequence[float]) -> Spread:
    """The quartiles, or the extremes of fewer than three values."""
    if len(values) < 3:
        return Spread(min(values), statistics.median(values), max(values))
    return Spread(*statistics.quantiles(values, method="inclusive"))


def ratios(a: Sequence[float], b: Sequence[float]) -> Spread:
    """The ratios of a to b, pair by pair."""
    return spread([x / y for x, y in zip(a, b, strict=True)])


def time_alternating(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each function, called alternately so that load affects all; the first call warms up.

    Pass `clock=time.process_time` for CPU seconds, which depend less on the load of the machine.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if turn:
                taken[name].append(clock() - start)
    return taken


def show(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a Markdown table."""
    headings = list(headings)
    print("\n| " + " | ".join(headings) + " |\n|---|" + "---:|" * (len(headings) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def parser(description: str | None, repeats: int, quick: int) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have; `quick` is the number of repeats with `--quick`."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--repeats", type=int, default=repeats)
    arguments.add_argument(
        "--quick", dest="repeats", action="store_const", const=quick, help=f"repeat {quick} times"
    )
    arguments.add_argument("--json", type=Path, help="write the figures to this file")
    return arguments


def write_json(path: Path | None, figures: Any) -> None:
    """Write the figures to a file, if one is given."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")


def run_fresh(file: str, *argv: object) -> Any:
    """Run a benchmark's file in a fresh process and return the JSON that it prints."""
    command = [sys.executable, file, *map(str, argv)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def reset_peak() -> None:
    """Reset the peak memory of this process (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The peak memory of this process in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
