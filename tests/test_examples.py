"""The examples run as a reader would run them, with fewer epochs."""

import csv
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from fedmcc import DATASETS, METHODS, load_config, load_dataset, load_run, run
from fedmcc.runs.directory import Row, create_run

pytestmark = pytest.mark.slow  # whole runs or processes

Start = Callable[..., str]
EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {"data": {"name": "synthetic", "samples": 40}, "method": {"rounds": 2}, "training": {"batch_size": 20}}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Start]:
    """Runs an example in a folder and returns what it prints; what it registers is removed again.

    All run in this process: in one of its own, each would load torch and scikit-learn for five seconds.
    """

    def run_example(folder: Path, example: str, *arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [example, *arguments])
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # as all tests, with one thread
    registered = [(registry, dict(registry)) for registry in (METHODS, DATASETS)]
    yield run_example
    for registry, before in registered:
        registry.clear()
        registry.update(before)


def scores(run: Path) -> Row:
    return load_run(run).read_json("scores.json")


def test_every_example_is_run_is_short_and_uses_public_names_only() -> None:
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'start(tmp_path, "{path.name}"' in here
        text = path.read_text()
        assert len(text.splitlines()) <= 60
        assert "fedmcc" in text
        assert not re.search(r"(import|from) fedmcc\.", text)


def test_quickstart_clusters_the_digits(start: Start, tmp_path: Path) -> None:
    printed = start(tmp_path, "quickstart.py", "--epochs", "1")
    assert "in 1 epochs" in printed
    assert "NMI of k-means on features" in printed


def test_own_images_draws_a_folder_and_says_where_the_clusters_are(start: Start, tmp_path: Path) -> None:
    printed = start(tmp_path, "own_images.py", "--epochs", "1")
    (table,) = Path("runs").glob("folder-*-001/assignments.csv")
    assert str(table) in printed
    with table.open(newline="") as file:
        assert [line["image"] for line in csv.DictReader(file)][:2] == ["shape-000.png", "shape-001.png"]


def test_own_images_takes_a_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for number, pixels in enumerate(load_dataset("synthetic", samples=70).images):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / "mine" / f"{number}.png")
    options = ("mine", "--clusters", "2", "--epochs", "1", "--out", "here")
    assert "No folder given" not in start(tmp_path, "own_images.py", *options)
    assert (scores(tmp_path / "here")["images"], scores(tmp_path / "here")["clusters"]) == (70, 2)


def test_own_method_has_no_head_and_is_scored_by_its_features(start: Start, tmp_path: Path) -> None:
    start(tmp_path, "own_method.py", "--epochs", "1")
    assert set(scores(tmp_path / "runs/digits-decorrelated-001")["scores"]) == {"pixels", "features"}


def test_own_dataset_runs_by_its_name(start: Start, tmp_path: Path) -> None:
    start(tmp_path, "own_dataset.py", "--epochs", "1")
    assert scores(tmp_path / "runs/stripes-fedmcc-001")["images"] == 400


def test_digit_folders_deals_all_digits_to_three_owners(start: Start, tmp_path: Path) -> None:
    assert "1,797 digits" in start(tmp_path, "digit_folders.py", "here")
    counts = {path.name: len([*path.glob("*.png")]) for path in (tmp_path / "here").iterdir()}
    assert counts == {"a": 599, "b": 599, "c": 599}


def test_read_run_shows_the_curve_and_every_cluster(start: Start, tmp_path: Path) -> None:
    run(load_config({**TINY, "threads": 1}), tmp_path / "tiny")
    printed = start(tmp_path, "read_run.py", "tiny")
    assert "representation 2  loss" in printed
    assert "cluster 3:" in printed


def test_read_run_needs_no_torch(tmp_path: Path) -> None:
    create_run(tmp_path / "run", "# begun, nothing more", {})
    script = f"import runpy, sys; sys.argv = ['', {str(tmp_path / 'run')!r}]\n"
    script += f"runpy.run_path({str(EXAMPLES / 'read_run.py')!r}, run_name='__main__')\n"
    script += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fedmcc resume" in done.stdout
