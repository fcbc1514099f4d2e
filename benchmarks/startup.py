"""The time to start the program and to import the package, each in fresh processes, alternating.

The reports are of a run on 200 digits: the run with images, without images, and compared with a copy.

python benchmarks/startup.py [--quick] [--repeats 5] [--json FILE]
"""

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import parser, show, spread, time_alternating, write_json

CASES = {
    "python -c pass": ("-c", "pass"),
    "import fedmcc": ("-c", "import fedmcc"),
    "fedmcc --help": ("-m", "fedmcc", "--help"),
    "fedmcc --version": ("-m", "fedmcc", "--version"),
    "import torch": ("-c", "import torch"),
}


def main() -> None:
    """Print the median of each command, and its time beyond that of Python itself."""
    options = parser(__doc__, repeats=5, quick=3).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = CASES | reports(Path(folder) / "run")
        taken = time_alternating(
            {name: functools.partial(start, argv) for name, argv in cases.items()}, options.repeats
        )
    nothing = taken["python -c pass"]
    rows = []
    for name, times in taken.items():
        beyond = spread([own - bare for own, bare in zip(times, nothing, strict=True)])
        rows.append([f"`{name}`", spread(times).text(3), beyond.text(3)])
    show(("a fresh process", "seconds", "beyond Python"), rows)
    write_json(options.json, taken)


def reports(run: Path) -> dict[str, tuple[str, ...]]:
    """Make a small run; returns the commands that report on it."""
    recipe = run.with_suffix(".toml")
    recipe.write_text('[data]\nlimit = 200\n[method]\nname = "mcc"\nrounds = 2\n')
    start(("-m", "fedmcc", "run", str(recipe), "--out", str(run), "--no-report"))
    other = shutil.copytree(run, run.with_name("other"))
    report = ("-m", "fedmcc", "report", str(run))
    return {
        "fedmcc report RUN": report,
        "fedmcc report RUN --no-images": (*report, "--no-images"),
        "fedmcc report RUN RUN": (*report, str(other), "--out", str(run / "both.html")),
    }


def start(argv: tuple[str, ...]) -> None:
    """Run a process to its end."""
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
