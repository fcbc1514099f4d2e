"""Reports as files: when they are written, and what they must not hold."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedmcc.cli import app

Command = Callable[..., Result]


def test_as_many_other_images_are_not_taken_for_those_of_the_run(
    fedmcc: Command, unlabelled: Path, pictures: Path
) -> None:
    (pictures / "03.png").rename(pictures / "99.png")  # all behind it move up
    assert fedmcc("report", unlabelled).exit_code == 0
    page = (unlabelled / "report.html").read_text()
    assert "21 of the 24 images have another name or label" in page
    assert "data:image/webp" not in page


def test_images_with_other_labels_are_not_taken_for_those_of_the_run(fedmcc: Command, run: Path) -> None:
    first, *lines = (run / "assignments.csv").read_text().splitlines()
    lines[7] = lines[7][:-1] + str(1 - (lines[7][-1] == "1"))  # a seven no more
    (run / "assignments.csv").write_text("\n".join([first, *lines, ""]))
    assert fedmcc("report", run).exit_code == 0
    page = (run / "report.html").read_text()
    assert "1 of the 100 images have another name or label" in page
    assert "data:image/webp" not in page


def test_of_a_run_whose_images_are_with_its_sites_no_image_is_shown(fedmcc: Command, run: Path) -> None:
    (run / "sites.json").write_text(json.dumps({"id": "a", "sites": ["north", "south"], "channels": 1}))
    shutil.rmtree(run / "cache", ignore_errors=True)
    assert fedmcc("report", run).exit_code == 0
    page = (run / "report.html").read_text()
    assert "The images of the run are with its sites, where they stay." in page
    assert "data:image/webp" not in page


def test_a_run_ends_with_its_report(recipe: Path, tmp_path: Path) -> None:
    words = ["run", recipe, "--set", "method.rounds=1", "--set", "data.limit=64", "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert "report.html" in result.stderr.splitlines()[-1]
    assert "data:image/webp" in (tmp_path / "run" / "report.html").read_text()


def test_a_report_that_fails_does_no_harm(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.report.build.read", lambda path: 1 / 0)
    words = ["run", recipe, "--set", "method.rounds=1", "--set", "data.limit=64", "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0
    assert "The report could not be written: ZeroDivisionError" in result.stderr
    assert (tmp_path / "run" / "scores.json").exists()
