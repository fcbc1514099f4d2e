"""The command `predict` before it reads a run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app


@pytest.mark.parametrize("name", ["table.xlsx", "table.pqt"])
def test_a_table_is_refused_under_a_name_of_another_format(name: str, tmp_path: Path) -> None:
    argv = ["predict", str(tmp_path), str(tmp_path), "--out", str(tmp_path / name)]
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 2
    assert "give --out a name in .csv, .jsonl or .parquet" in " ".join(result.output.split())
    assert not (tmp_path / name).exists()
