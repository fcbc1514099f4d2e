"""Help and mistakes are answered before torch and other libraries that take seconds are loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("torch", "scipy", "sklearn", "plotly", "pydantic", "pandas", "matplotlib", "flwr")
SCRIPT = f"""
import sys
from fedmcc.cli import main
try:
    main()
except SystemExit as stopped:
    loaded = [name for name in {SLOW} if name in sys.modules]
    print("loaded:", *loaded, file=sys.stderr)
    sys.exit(stopped.code)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe, two files in a folder of images, an empty folder, and the start of a run."""
    (tmp_path / "recipe.toml").write_text("seed = 3\n")
    (tmp_path / "wrong.toml").write_text("seed = \n")
    for name in ("images", "empty", "run"):
        (tmp_path / name).mkdir()
    for name in ("images/a.png", "images/b.png"):
        (tmp_path / name).touch()
    for name in ("run/config.toml", "run/environment.json", "file.txt"):
        (tmp_path / name).write_text("{}" if name.endswith("json") else "")
    return tmp_path


def answer(folder: Path, *argv: str) -> tuple[int, str]:
    """The exit code and the output of a command that must not load slow libraries."""
    command = [sys.executable, "-c", SCRIPT, *argv]
    clean = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=120)
    output, _, loaded = done.stderr.rpartition("loaded:")
    assert loaded.split() == []
    return done.returncode, done.stdout + output


@pytest.mark.parametrize("argv", [["--help"], ["cluster", "--help"], ["--version"], ["federation", "--help"]])
def test_help_loads_nothing_that_takes_seconds(folder: Path, argv: list[str]) -> None:
    assert answer(folder, *argv)[0] == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("cluster nowhere", "There is no folder"),
        ("cluster empty", "is empty: put images in it"),
        ("cluster file.txt", "is a file: give the folder that holds your images"),
        ("cluster run", "run is a run: resume it with `fedmcc resume run`"),
        ("cluster images --tme 3m", "No such option: --tme"),
        ("cluster images --time soon", "--time is 'soon': give a duration such as 90s, 10m or 1h30m"),
        ("cluster images --clusters 1", "--clusters is 1: give 2 or more, or auto"),
        ("cluster images --clusters 3", "3 clusters of 2 files: lower --clusters or give more images"),
        ("cluster images --threads 0", "0 is not in the range"),
        ("cluster images --encoder convnt", "Unknown encoder 'convnt'. Did you mean 'convnet'?"),
        ("cluster images --encoder no.onnx", "There is no file no.onnx"),
        ("cluster images --out run", "run is not empty: resume its run with `fedmcc resume run`"),
        ("cluster images --out file.txt/new", "Cannot use file.txt/new for the run: Not a directory"),
        ("run nowhere.toml", "There is no recipe at nowhere.toml"),
        ("run wrong.toml", "wrong.toml is not valid TOML"),
        (
            "run run",
            "run is a run: resume it with `fedmcc resume run`, or repeat it with `fedmcc run run/config",
        ),
        ("run recipe.toml --reprt", "No such option: --reprt"),
        ("run recipe.toml --out run", "run is not empty"),
        ("run recipe.toml --out file.txt", "Cannot use file.txt for the run: Not a directory"),
        ("run recipe.toml --engine poll", "Unknown engine 'poll'. Did you mean 'pool'?"),
        ("run recipe.toml --set method.hiden=3", "Unknown key in [method] 'hiden'. Did you mean 'hidden'?"),
        ("demo --out run", "run is not empty"),
        ("resume nowhere", "nowhere is not a run directory"),
        ("resume images", "images is not a run directory"),
        ("report images", "images is not a run directory"),
        ("report run", "run has no finished round yet"),
        ("report run --out page.pdf", "page.pdf is not an HTML file"),
        ("export run --onnx model.pt", "model.pt is not an ONNX file: give --onnx a name that ends in .onnx"),
    ],
)
def test_a_mistake_loads_nothing_that_takes_seconds(folder: Path, argv: str, sentence: str) -> None:
    code, output = answer(folder, *argv.split())
    assert code == 2, output
    assert sentence in " ".join(output.split())


def test_the_file_of_a_report_is_checked_before_libraries_are_loaded(folder: Path) -> None:
    (folder / "run" / "metrics.jsonl").write_text('{"stage": "joint", "round": 1, "seconds": 1.0}\n')
    (folder / "run" / "config.toml").write_text("clusters = 3\n")
    (folder / "thesis.html").write_text("three years of work")
    for out, sentence in (
        ("thesis.html", "use --force"),
        ("file.txt/r.html", "Cannot use file.txt for r.html"),
    ):
        code, output = answer(folder, "report", "run", "--out", out)
        assert code == 2, output
        assert sentence in output
