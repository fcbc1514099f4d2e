"""Report files: when they are written, and what they must not contain."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedmcc.cli import app

Command = Callable[..., Result]


def test_the_same_number_of_other_images_is_refused(
    fedmcc: Command, unlabelled: Path, pictures: Path
) -> None:
    (pictures / "03.png").rename(pictures / "99.png")  # the images after it move up
    assert fedmcc("report", unlabelled).exit_code == 0
    page = (unlabelled / "report.html").read_text()
    assert "21 of the 24 images have another name or label" in page
    assert "data:image/webp" not in page


def test_images_with_other_labels_are_refused(fedmcc: Command, run: Path) -> None:
    first, *lines = (run / "assignments.csv").read_text().splitlines()
    lines[7] = lines[7][:-1] + str(1 - (lines[7][-1] == "1"))  # another label
    (run / "assignments.csv").write_text("\n".join([first, *lines, ""]))
    assert fedmcc("report", run).exit_code == 0
    page = (run / "report.html").read_text()
    assert "1 of the 100 images have another name or label" in page
    assert "data:image/webp" not in page


def test_images_at_sites_are_not_shown(fedmcc: Command, run: Path) -> None:
    (run / "sites.json").write_text(json.dumps({"id": "a", "sites": ["north", "south"], "channels": 1}))
    shutil.rmtree(run / "cache", ignore_errors=True)
    assert fedmcc("report", run).exit_code == 0
    page = (run / "report.html").read_text()
    assert "The images of the run are at its sites and cannot be read here." in page
    assert "data:image/webp" not in page


def test_a_run_ends_with_its_report(recipe: Path, tmp_path: Path) -> None:
    argv = ["run", recipe, "--set", "method.rounds=1", "--set", "data.limit=64", "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, list(map(str, argv)))
    assert result.exit_code == 0, result.output
    assert "report.html" in result.stderr.splitlines()[-1]
    assert "data:image/webp" in (tmp_path / "run" / "report.html").read_text()


def test_a_report_that_fails_does_not_fail_the_run(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.report.build.read_run", lambda path: 1 / 0)
    argv = ["run", recipe, "--set", "method.rounds=1", "--set", "data.limit=64", "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, list(map(str, argv)))
    assert result.exit_code == 0
    assert "The report could not be written: ZeroDivisionError" in result.stderr
    assert (tmp_path / "run" / "scores.json").exists()
