"""The name of the file that `fedmcc report` writes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app


@pytest.mark.parametrize("name", ["r.pdf", "r", "r.html.gz"])
def test_a_report_is_refused_under_a_name_that_is_not_html(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / name)])
    assert result.exit_code == 2
    assert f"{name} is not an HTML file: give --out a name that ends in .html." in result.stderr
    assert not list(tmp_path.iterdir())
