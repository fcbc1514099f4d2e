"""How long the program takes to answer, and the package to be imported, each in fresh processes in turns.

The reports are of a run on 200 digits, made first: of it alone, again from what that kept, and compared.

python benchmarks/startup.py [--quick] [--repeats 5] [--json FILE]
"""

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
    options = parser(__doc__, repeats=5, quick=3).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = CASES | reports(Path(folder) / "run")
        taken = in_turns(
            {name: functools.partial(start, words) for name, words in cases.items()}, options.repeats
        )
    nothing = taken["python -c pass"]
    rows = []
    for name, times in taken.items():
        beyond = spread([own - bare for own, bare in zip(times, nothing, strict=True)])
        rows.append([f"`{name}`", spread(times).text(3), beyond.text(3)])
    show(("a fresh process", "seconds", "beyond Python"), rows)
    write_json(options.json, taken)


def reports(run: Path) -> dict[str, tuple[str, ...]]:
    """A small run is made, and commands that report on it."""
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


def start(words: tuple[str, ...]) -> None:
    """Let a process begin and end."""
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
