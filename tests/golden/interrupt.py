"""Writes `interrupted-run/`, which the program left when it was killed, and what it would have become.

The directory stands for all those that people have: it is as an earlier fedmcc wrote it, and every later one
must be able to resume it. Write it anew only with a change of the format that is meant.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN = HERE / "interrupted-run"
EXPECTED = HERE / "interrupted-run.json"
PROGRAM = Path(sys.executable).parent / "fedmcc"
LAST = ("separation", 2)  # of four rounds
RECIPE = """
seed = 3
threads = 1
device = "cpu"
clusters = 3
data = { name = "digits", limit = 60 }
views.size = 8
encoder.width = 2
partition = { name = "by_class", clients = 3 }
federation.count = 2
training.batch_size = 8

[method]
name = "fedmcc-plus"
rounds = 6
separation = 0.7
hidden = 8
projections = 4
axes = 0.7
prototypes = 2.0
polish_rounds = 2
"""


def main() -> None:
    """Run the program twice, to its end and not."""
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        _start(Path(folder), whole).wait()
        _kill_amid(_start(Path(folder), cut), cut)
        EXPECTED.write_text(json.dumps(_expected(whole), indent=2) + "\n")
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.copytree(cut, RUN)
    _remove_traces_of_this_machine()


def _start(folder: Path, out: Path) -> "subprocess.Popen[bytes]":
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    return subprocess.Popen([PROGRAM, "run", recipe, "--no-report", "--out", out])


def _kill_amid(process: "subprocess.Popen[bytes]", path: Path) -> None:
    progress = path / "resume" / "progress.json"
    while process.poll() is None and not (progress.exists() and _moment(progress) == LAST):
        time.sleep(0.001)
    process.kill()
    process.wait()
    if _moment(progress) != LAST:
        sys.exit("It was killed too late: try again.")


def _moment(progress: Path) -> tuple[str, int]:
    saved = json.loads(progress.read_text())
    return saved["stage"], saved["round"]


def _expected(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "how": "Written by `python tests/golden/interrupt.py`; compared to a relative 1e-5.",
        "rows": [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
        "scores": json.loads((run / "scores.json").read_text()),
    }


def _remove_traces_of_this_machine() -> None:
    path = RUN / "environment.json"
    environment = json.loads(path.read_text()) | {"system": platform.system()}
    path.write_text(json.dumps(environment, indent=2) + "\n")


if __name__ == "__main__":
    main()
