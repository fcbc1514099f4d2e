"""How long the program takes to answer, and the package to be imported, each in fresh processes in turns.

python benchmarks/startup.py [--repeats 9]
"""

import argparse
import statistics
import subprocess
import sys
import time

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
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, words in CASES.items():
            taken[name].append(seconds(words))
    nothing = statistics.median(taken["python -c pass"])
    print(f"{'':>18} {'seconds':>8} {'beyond Python':>14}   median of {repeats}")
    for name, times in taken.items():
        middle = statistics.median(times)
        print(f"{name:>18} {middle:8.3f} {middle - nothing:14.3f}")


def seconds(words: tuple[str, ...]) -> float:
    """How long a process takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
