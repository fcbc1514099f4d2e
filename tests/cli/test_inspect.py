"""The command `predict` before it reads a run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app


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
