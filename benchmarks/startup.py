"""How long the program takes to answer, and the package to be imported, each in fresh processes in turns.

python benchmarks/startup.py [--quick] [--repeats 9] [--json FILE]
"""

import functools
import subprocess
import sys

from measuring import in_turns, parser, show, spread, write_json

CASES = {
    "python -c pass": ("-c", "pass"),
    "import fedmcc": ("-c", "import fedmcc"),
    "fedmcc --help": ("-m", "fedmcc", "--help"),
    "fedmcc --version": ("-m", "fedmcc", "--version"),
    "import torch": ("-c", "import torch"),
}


def main() -> None:
    """Print the median of each, and what it takes beyond Python itself."""
    options = parser(__doc__, repeats=9, quick=3).parse_args()
    taken = in_turns(
        {name: functools.partial(start, words) for name, words in CASES.items()}, options.repeats
    )
    nothing = taken["python -c pass"]
    rows = []
    for name, times in taken.items():
        beyond = spread([own - bare for own, bare in zip(times, nothing, strict=True)])
        rows.append([f"`{name}`", spread(times).text(3), beyond.text(3)])
    show(("a fresh process", "seconds", "beyond Python"), rows)
    write_json(options.json, taken)


def start(words: tuple[str, ...]) -> None:
    """Let a process begin and end."""
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
