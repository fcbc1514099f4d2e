"""Errors of the command line that concern Flower's simulation."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.deployment import simulation


def _fedmcc(*argv: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in argv], env={"COLUMNS": "200"})


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text("clusters = 3\n")
    return path


def test_an_engine_that_does_not_exist_is_named(recipe: Path, tmp_path: Path) -> None:
    result = _fedmcc("run", recipe, "--engine", "flowers", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "Unknown engine 'flowers'" in result.output


def test_without_ray_the_simulation_says_what_to_install(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: None if name == "ray" else name)
    result = _fedmcc("run", recipe, "--engine", "flower-simulation", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "pip install 'fedmcc[simulation]'" in result.output
    assert not (tmp_path / "run").exists()


def test_the_run_of_a_federation_is_not_resumed_without_its_sites(three, tmp_path: Path) -> None:
    next(three().serve())
    result = _fedmcc("resume", tmp_path / "run")
    assert result.exit_code == 2
    assert "belongs to a federation: resume it with `fedmcc server start`" in result.output
