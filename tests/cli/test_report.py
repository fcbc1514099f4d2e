"""The options of `fedmcc report`."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.runs.directory import Run


@pytest.mark.parametrize("name", ["r.pdf", "r", "r.html.gz"])
def test_a_report_is_refused_under_a_name_that_is_not_html(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / name)])
    assert result.exit_code == 2
    assert f"{name} is not an HTML file: give --out a name that ends in .html." in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_report_with_another_number_of_clusters_sets_it_and_loses_names_by_force_alone(
    folder_run: Run, tmp_path: Path
) -> None:
    run = str(shutil.copytree(folder_run.path, tmp_path / "run"))
    argv = ["report", run, "--no-images", "--clusters", "3"]
    for more, exit_code, clusters in (
        ([], 0, 3),
        (["--clusters", "2"], 2, 3),
        (["--clusters", "2", "--force"], 0, 2),
    ):
        result = CliRunner().invoke(app, [*argv, *more])
        assert result.exit_code == exit_code, result.output
        assert json.loads((tmp_path / "run" / "scores.json").read_text())["clusters"] == clusters
        CliRunner().invoke(app, ["name", run, "0", "sky"])


@pytest.mark.slow
def test_a_run_keeps_its_clusters_if_its_report_cannot_be_written(folder_run: Run, tmp_path: Path) -> None:
    run, foreign = str(shutil.copytree(folder_run.path, tmp_path / "run")), tmp_path / "foreign.html"
    foreign.write_text("somebody else's")
    result = CliRunner().invoke(app, ["report", run, "--clusters", "3", "--out", str(foreign)])
    assert result.exit_code == 2
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["clusters"] == 4
    assert foreign.read_text() == "somebody else's"
