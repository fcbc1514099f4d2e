"""The curves and the maps that are drawn from the runs of a table."""

import json
from pathlib import Path

import pytest
import torch

from fedmcc.reproduction import curves, figures, tsne
from fedmcc.reproduction.cell_workers import run_cells
from fedmcc.reproduction.cells import Cell, Request, plan_cells, write_plan
from fedmcc.reproduction.run_cell import Ended
from fedmcc.reproduction.table_spec import load_table
from fedmcc.runs.checkpoints import load_state

pytestmark = pytest.mark.slow  # whole runs or processes


def test_curves_count_rounds_over_all_stages(tmp_path: Path) -> None:
    request = Request(load_table("accuracy-per-round"), "smoke", tmp_path)
    planned = plan_cells(request)
    cell = next(cell for cell in planned if cell.row == "fedmcc")
    cell.path.mkdir(parents=True)
    rows = [("representation", {"kmeans_acc": 0.5}), ("clustering", {"acc": 0.75})]
    lines = (json.dumps({"stage": stage, "round": 1} | scores) for stage, scores in rows)
    (cell.path / "metrics.jsonl").write_text("\n".join(lines))
    points = curves.read_points(request.table, planned)
    assert [(point.curve, point.round, point.score) for point in points] == [
        ("FedMCC, k-means", 1, 0.5),
        ("FedMCC, head", 2, 0.75),
    ]
    assert "FedMCC, head" in figures.write_figure(request, planned)
    assert len((tmp_path / "figure.csv").read_text().splitlines()) == 3


def test_the_network_kept_half_way_is_that_of_a_run_of_half_the_rounds(tmp_path: Path) -> None:
    def done(rounds: int) -> Cell:
        request = Request(
            load_table("tsne"), "smoke", tmp_path / str(rounds), 1, 1, (f"method.rounds={rounds}",)
        )
        write_plan(request, plan_cells(request))
        cell = next(cell for cell in plan_cells(request) if cell.row == "mcc")
        assert [event for _, event in run_cells([cell], 1)][-1] == Ended()
        return cell

    two, four = done(2), done(4)
    moments = [point.when for point in tsne.read_points(load_table("tsne"), [four])]
    assert list(dict.fromkeys(moments)) == ["before", "round 2", "after"]
    half_way = load_state(four.run.model_file.with_name("round-000002.safetensors"))
    final = load_state(two.run.model_file)
    assert half_way.keys() == final.keys()
    assert all(torch.equal(half_way[name], final[name]) for name in final)


def test_drawn_rounds_are_the_papers_and_train_the_encoder() -> None:
    rounds = {}
    for scale in ("paper", "small", "smoke"):
        request = Request(load_table("tsne"), scale, Path())
        rounds[scale] = {cell.row: tsne.drawn_rounds(cell.config) for cell in plan_cells(request)}
    assert rounds["paper"] == {"fedmcc": [10, 50], "mcc": [100, 500]}
    assert rounds["small"] == {"fedmcc": [2, 8], "mcc": [2, 8]}
    assert rounds["smoke"] == {"fedmcc": [], "mcc": []}
