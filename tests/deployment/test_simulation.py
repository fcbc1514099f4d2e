"""What a person meets at the command line when Flower is in play."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedmcc import config
from fedmcc.cli import app
from fedmcc.deployment import simulation
from fedmcc.deployment.server.launch import resolve_resumed
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run


def _fedmcc(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


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


def test_a_run_goes_on_with_its_own_recipe_alone(three, tmp_path: Path) -> None:
    federation = three()
    next(federation.serve())
    run, table = Run(tmp_path / "run"), federation.table
    own = resolve_resumed(run, config.parse(table))
    assert (own.views.size, own.method.rounds) == (8, 3)  # the recipe leaves the size open
    with pytest.raises(InputError, match=r"begun with another method\.rounds than the recipe has: .*--run"):
        resolve_resumed(run, config.parse(config.put(table, "method.rounds", 9)))
    with pytest.raises(InputError, match=r"begun with another method\.name than"):
        resolve_resumed(run, config.parse(config.put(table, "method", {"name": "fedbyol"})))
    new = config.parse(config.put(table, "method.rounds", 9))
    assert resolve_resumed(Run(tmp_path / "new"), new) == new


def test_the_run_of_a_federation_is_not_resumed_without_its_sites(three, tmp_path: Path) -> None:
    next(three().serve())
    result = _fedmcc("resume", tmp_path / "run")
    assert result.exit_code == 2
    assert "is a federation's: start its server again" in result.output
