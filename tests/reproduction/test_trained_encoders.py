"""Rows that cluster the encoders which another row has trained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedmcc import config
from fedmcc.cli import app
from fedmcc.reproduction.cell_workers import run_cells
from fedmcc.reproduction.cells import Cell, Request, plan_cells, recipe_text, selected, write_plan
from fedmcc.reproduction.reuse import copy_equal_run
from fedmcc.reproduction.run_cell import Ended, run_cell
from fedmcc.reproduction.table_spec import load_table, table_names
from fedmcc.runs import experiment
from fedmcc.runs.build import prepare
from fedmcc.runs.checkpoints import load_state
from fedmcc.runs.directory import FORMAT
from fedmcc.runs.experiment import start_run

pytestmark = pytest.mark.slow  # whole runs or processes


@pytest.fixture
def request_for_kmeans(tmp_path: Path) -> Request:
    table = load_table("generalisation")
    return Request(table, "smoke", tmp_path, rows=("default-kmeans",), columns=("digits-by_class",))


@pytest.fixture
def cells(request_for_kmeans: Request) -> dict[str, Cell]:
    """The planned cells of the row and of the row that trains its encoders."""
    chosen = selected(request_for_kmeans, plan_cells(request_for_kmeans))
    write_plan(request_for_kmeans, chosen)
    return {cell.row: cell for cell in chosen}


def test_the_row_that_trains_the_encoders_runs_too(cells: dict[str, Cell]) -> None:
    assert cells.keys() == {"default", "default-kmeans"}
    assert cells["default-kmeans"].encoder_of == cells["default"].path


def test_every_such_row_names_a_row_that_trains_encoders_of_the_same_form() -> None:
    for table in map(load_table, table_names()):
        for scale in table.scales:
            planned = plan_cells(Request(table, scale, Path()))
            encoders = {cell.path: (cell.config.encoder, cell.config.views.size) for cell in planned}
            for cell in planned:
                if cell.encoder_of is not None:
                    assert encoders[cell.encoder_of] == (cell.config.encoder, cell.config.views.size)
                    assert config.name_of("method", cell.config.method) == "raw"


def test_a_cell_waits_for_the_encoder_of_another(cells: dict[str, Cell]) -> None:
    order = [cells["default-kmeans"], cells["default"]]
    events = [(cell.row, event) for cell, event in run_cells(order, 2) if event in (None, Ended())]
    started, ended = None, Ended()
    assert events == [
        ("default", started),
        ("default", ended),
        ("default-kmeans", started),
        ("default-kmeans", ended),
    ]


def test_clusters_are_those_of_a_run_that_trains_the_encoder_itself(cells: dict[str, Cell]) -> None:
    alone, source = cells["default-kmeans"], cells["default"]
    table = {"name": "fedu", "rounds": 1, "epochs": 1, "hidden": 16, "projections": 8}
    method = config.parse({"data": {"name": "digits"}, "method": table}).method
    complete = replace(source.config, method=method, clustering=alone.config.clustering)
    trained = replace(source, config=complete)
    assert [event for _, event in run_cells([trained, alone], 1) if isinstance(event, Ended)] == [Ended()] * 2
    expected, found = load_state(trained.run.model_file), load_state(alone.run.model_file)
    names = {name for name in expected if not name.startswith(("online.instance", "online.predictor"))}
    assert found.keys() == names
    assert all(torch.equal(found[name], expected[name]) for name in names)


def test_without_the_encoder_the_cell_says_what_to_run(cells: dict[str, Cell]) -> None:
    (event,) = (event for _, event in run_cells([cells["default-kmeans"]], 1) if isinstance(event, Ended))
    assert "needs the encoder of default-digits-by_class-seed0" in event.reason
    assert not cells["default-kmeans"].path.exists()


def test_a_cell_that_is_killed_before_its_first_round_keeps_the_encoder(
    cells: dict[str, Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cell = cells["default"], cells["default-kmeans"]
    assert [event for _, event in run_cells([source], 1)][-1] == Ended()
    other = replace(cell, path=cell.path.with_name("other"))
    start_run(prepare(cell.config), cell.path)  # killed before anything is committed
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "steps", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(run_cell(other, 1))
    assert [event for _, event in run_cells([cell], 1)][-1] == Ended()
    assert CliRunner().invoke(app, ["resume", "--no-report", str(other.path)]).exit_code == 0
    expected, *found = (load_state(each.run.model_file) for each in (source, cell, other))
    names = [name for name in expected if name.startswith("online.encoder")]
    assert names
    assert all(torch.equal(state[name], expected[name]) for state in found for name in names)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_such_a_cell_is_never_copied_from_another_table(cells: dict[str, Cell], tmp_path: Path) -> None:
    cell = cells["default-kmeans"]
    cell = replace(cell, path=tmp_path / "one/cells" / cell.name)
    for alike in (cell, replace(cell, encoder_of=None)):
        folder = tmp_path / f"other-{alike.encoder_of is None}"
        other = replace(alike, path=folder / "cells" / cell.name)
        other.path.mkdir(parents=True)
        other.run.config_file.write_text(config.dump(other.config))
        other.run.write_json("environment.json", {"format": FORMAT})
        other.run.write_json("scores.json", {"scores": {"head": {"acc": 0.25}}})
        name = cell.name.removesuffix("-seed0")
        (folder / "plan.json").write_text(json.dumps({"recipes": {name: recipe_text(alike)}}))
    assert not copy_equal_run(cell)
    assert copy_equal_run(replace(cell, encoder_of=None))  # a run of pixels or of a pretrained encoder
