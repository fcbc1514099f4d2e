"""Runs every command and the code of the tutorial as written, with fewer images and less time.

`test_tutorial.py` starts it in a process and a folder of its own: commands change the logging of theirs.
"""

import contextlib
import csv
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from fedmcc.cli import app

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
CHEAPER = {"--time 6m": "--time 1s", "serve runs/digits": "serve runs/digits --port 0"}
KEPT_IMAGES = 60


def main() -> None:
    """Run the tutorial in the current folder and check what it wrote and printed."""
    Path("examples").symlink_to(ROOT / "examples")
    with patch("uvicorn.Server.run", lambda *_, **__: None):  # a server that ends at once
        printed = {line: execute(line) for line in commands()}
    used = [line.split()[1] for line in printed]
    assert used[1:] == ["cluster", "name", "merge", "serve", "predict", "export"]
    assert "#token=" in printed["fedmcc serve runs/digits"]
    with Path("clusters.csv").open(newline="") as file:
        assert {"name", "kind", "second"} <= set(next(csv.DictReader(file)))
    assert (Path("digits.onnx").stat().st_size, Path("digits.onnx.md").stat().st_size) > (1000, 1000)
    assert re.search(r"cluster \d, assignment [01]\.\d\d", output_of_code())


def commands() -> list[str]:
    """The lines of the shell, without the installation."""
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("pip ")]


def execute(line: str) -> str:
    """Run a line in this process and return what it printed; it must succeed."""
    for long, short in CHEAPER.items():
        line = line.replace(long, short)
    program, *argv = shlex.split(line)
    if program == "python":
        with patch.object(sys, "argv", argv):
            runpy.run_path(argv[0], run_name="__main__")
        for path in sorted(Path("images").rglob("*.png"))[KEPT_IMAGES:]:
            path.unlink()
        return ""
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, f"{line}: {result.output}"
    return result.output


def output_of_code() -> str:
    """What the Python code of the tutorial prints."""
    code = re.search(r"```python\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    assert code is not None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code[1], {})
    return printed.getvalue()


if __name__ == "__main__":
    main()
