"""How long the program takes to answer, and the package to be imported, each in fresh processes in turns.

The reports are of a run on 200 digits, made first: of it alone, again from what that kept, and compared.

python benchmarks/startup.py [--repeats 9]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "python -c pass": ("-c", "pass"),
    "import fedmcc": ("-c", "import fedmcc"),
    "fedmcc --help": ("-m", "fedmcc", "--help"),
    "fedmcc --version": ("-m", "fedmcc", "--version"),
    "import torch": ("-c", "import torch"),
}


def main() -> None:
    """Print the median of each, and what it takes beyond Python itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        cases = CASES | reports(Path(folder) / "run")
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(repeats):
            for name, words in cases.items():
                taken[name].append(seconds(words))
    nothing = statistics.median(taken["python -c pass"])
    print(f"{'':>30} {'seconds':>8} {'beyond Python':>14}   median of {repeats}")
    for name, times in taken.items():
        middle = statistics.median(times)
        print(f"{name:>30} {middle:8.3f} {middle - nothing:14.3f}")


def reports(run: Path) -> dict[str, tuple[str, ...]]:
    """A small run is made, and commands that report on it."""
    recipe = run.with_suffix(".toml")
    recipe.write_text('[data]\nlimit = 200\n[method]\nname = "mcc"\nrounds = 2\n')
    seconds(("-m", "fedmcc", "run", str(recipe), "--out", str(run), "--no-report"))
    report = ("-m", "fedmcc", "report", str(run))
    return {
        "fedmcc report RUN": report,
        "fedmcc report RUN --no-images": (*report, "--no-images"),
        "fedmcc report RUN RUN": (*report, str(run), "--out", str(run / "both.html")),
    }


def seconds(words: tuple[str, ...]) -> float:
    """How long a process takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
