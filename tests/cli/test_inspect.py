"""The options of the command `predict`."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.runs.directory import Run


@pytest.mark.parametrize(
    ("name", "options", "remedy"),
    [
        ("table.xlsx", [], "give --out a name that ends in .csv, .jsonl or .parquet"),
        ("table.pqt", [], "give --out a name that ends in .csv, .jsonl or .parquet"),
        ("table.CSV", ["--json"], "leave out --json, or end the name in .jsonl"),
        ("table.parquet", ["--json"], "leave out --json, or end the name in .jsonl"),
    ],
)
def test_a_table_is_refused_under_a_name_of_another_format(
    name: str, options: list[str], remedy: str, tmp_path: Path
) -> None:
    argv = ["predict", str(tmp_path), str(tmp_path), "--out", str(tmp_path / name), *options]
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 2
    assert remedy in " ".join(result.output.split())
    assert not (tmp_path / name).exists()


@pytest.mark.slow
def test_another_number_of_clusters_is_that_of_the_table(folder_run: Run, image_folder: Path) -> None:
    result = CliRunner().invoke(app, ["predict", str(folder_run.path), str(image_folder), "--clusters", "2"])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 24
    assert {row["cluster"] for row in rows} <= {"0", "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clusters", "1"], "1 clusters: the hierarchy of"),
        (["--site", "north"], "'north'. There are none here: leave it out."),
    ],
)
def test_a_number_or_a_site_that_the_run_does_not_have_is_refused(
    options: list[str], sentence: str, folder_run: Run, image_folder: Path
) -> None:
    result = CliRunner().invoke(app, ["predict", str(folder_run.path), str(image_folder), *options])
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
