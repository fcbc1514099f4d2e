"""Every command and the code of the tutorial run as written, with fewer images and less time."""

import csv
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
CHEAPER = {"--time 6m": "--time 1s", "serve runs/digits": "serve runs/digits --port 0"}
KEPT_IMAGES = 60


@pytest.fixture(autouse=True)
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which the paths of the tutorial exist, and a server that ends at once."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)


def commands() -> list[str]:
    """The lines of the shell, without the installation."""
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("pip ")]


def execute(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a line in this process and return what it printed; it must succeed."""
    for long, short in CHEAPER.items():
        line = line.replace(long, short)
    program, *argv = shlex.split(line)
    if program == "python":
        monkeypatch.setattr(sys, "argv", argv)
        runpy.run_path(argv[0], run_name="__main__")
        for path in sorted(Path("images").rglob("*.png"))[KEPT_IMAGES:]:
            path.unlink()
        return ""
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, f"{line}: {result.output}"
    return result.output


def test_the_tutorial_runs_as_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {line: execute(line, monkeypatch) for line in commands()}
    used = [line.split()[1] for line in printed]
    assert used[1:] == ["cluster", "name", "merge", "serve", "predict", "export"]
    assert "#token=" in printed["fedmcc serve runs/digits"]
    with Path("clusters.csv").open(newline="") as file:
        assert {"name", "kind", "second"} <= set(next(csv.DictReader(file)))
    assert (Path("digits.onnx").stat().st_size, Path("digits.onnx.md").stat().st_size) > (1000, 1000)
    code = re.search(r"```python\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert re.search(r"cluster \d, assignment [01]\.\d\d", capsys.readouterr().out)


def test_its_pictures_are_small() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", TUTORIAL)
    assert len(pictures) >= 3
    assert all((ROOT / "docs" / name).stat().st_size < 300_000 for name in pictures)
