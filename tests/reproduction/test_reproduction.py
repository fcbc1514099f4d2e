"""A table's cells, what they say together, how it is written, and what it would cost."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.reproduction import cost, curves, figures, tsne
from fedmcc.reproduction.cell_workers import run_cells
from fedmcc.reproduction.cells import Cell, Request, cells, settle
from fedmcc.reproduction.render import write_table
from fedmcc.reproduction.reproduce import reproduce
from fedmcc.reproduction.results import Entry, collect
from fedmcc.reproduction.run_cell import Ended
from fedmcc.reproduction.table_spec import load_table
from fedmcc.runs.checkpoints import load_state

pytestmark = pytest.mark.slow  # whole runs or processes

Ask = Callable[..., Request]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def asked(table: str = "momentum", seeds: int = 1, *settings: str) -> Request:
        return Request(load_table(table), "smoke", tmp_path, seeds, settings=settings)

    return asked


def finish(cell: Cell, **scores: float) -> None:
    """What a finished run leaves, of all that only what tables read."""
    cell.path.mkdir(parents=True)
    cell.run.config_file.touch()
    cell.run.write_json("scores.json", {"scores": {"head": scores, "features": scores}})


def test_mean_and_sample_deviation_stand_beside_the_papers_figure() -> None:
    entry = Entry({"acc": [90.0, 92.0, 94.0]}, {"acc": 87.3}, wanted=3)
    assert entry.text("acc") == "92.0 ± 2.0 (87.3)"
    assert replace(entry, wanted=5).text("acc") == "92.0 ± 2.0, 3 of 5 seeds (87.3)"
    assert Entry({"acc": [90.0]}, {}, wanted=1).text("acc") == "90.0"


def test_what_is_missing_says_why(ask: Ask) -> None:
    request = ask("federated-iid")
    planned = cells(request)
    finish(planned[0], nmi=0.5, acc=0.25, ari=0.1)
    found = collect(request.table, planned, {planned[1].name: "No such folder."}).entries
    texts = {row: found[row, "mnist"].text("acc") for row in ("fedu-kmeans", "fedu-mcc", "cc", "ncc")}
    assert texts["fedu-kmeans"] == "25.0 (80.6)"
    assert texts["fedu-mcc"].startswith("failed (83.7) [")
    assert (texts["cc"], texts["ncc"]) == ("not yet (80.8)", "not implemented")
    assert found["cc", "stl10"].text("acc") == "not run (49.3)"


def test_a_row_can_read_the_runs_of_another(ask: Ask) -> None:
    request = ask("federated-iid")
    planned = cells(request)
    finish(next(cell for cell in planned if cell.row == "fedmcc"), nmi=0.5, acc=0.25, ari=0.1)
    found = collect(request.table, planned, {}).entries
    assert found["fedmcc-kmeans", "mnist"].text("acc") == "25.0"
    assert "fedmcc-kmeans" not in {cell.row for cell in planned}


def test_both_files_say_figures_protocol_scale_seeds_and_failures(ask: Ask, tmp_path: Path) -> None:
    request = ask("momentum", 2)
    planned = cells(request)
    finish(planned[0], nmi=0.5, acc=0.25, ari=0.1)
    write_table(request, planned, collect(request.table, planned, {planned[1].name: "Out of <disk>."}))
    words = ("25.0, 1 of 2 seeds (52.4)", "200 images", "Seeds 0 to 1", "scored on the images trained on")
    for name, reason in (("table.md", "Out of <disk>."), ("table.html", "Out of &lt;disk&gt;.")):
        text = (tmp_path / name).read_text()
        assert all(word in text for word in (*words, reason))


def test_a_folder_of_another_table_scale_or_setting_is_refused(ask: Ask) -> None:
    settle(ask(), cells(ask()))
    settle(ask("momentum", 3), cells(ask("momentum", 3)))  # more seeds are more of the same
    for other in (ask("local-epochs"), replace(ask(), scale="small"), ask("momentum", 1, "data.limit=99")):
        with pytest.raises(InputError, match="choose another folder with --out"):
            settle(other, cells(other))


def test_a_folder_with_other_things_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match=r"has no plan\.json: choose another folder"):
        settle(ask(), cells(ask()))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_call_that_was_killed_before_its_plan_was_written_goes_on(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / ".plan.json.abc").write_text("half a")
    settle(ask(), cells(ask()))
    assert (tmp_path / "plan.json").exists()


def test_seeds_are_not_a_setting(ask: Ask) -> None:
    with pytest.raises(InputError, match="--seeds"):
        ask("momentum", 1, "seed=5")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no scores": lambda path: (path / "scores.json").write_text("{}"),
    "half a file": lambda path: (path / "scores.json").write_text('{"scores": {'),
    "of a later version": lambda path: (path / "environment.json").write_text('{"format": 99}'),
    "no configuration": lambda path: (path / "config.toml").unlink(),
    "another evaluation": lambda path: (path / "evaluation.json").write_text('{"clustering": {"acc": 1}}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cell_costs_that_cell_alone(ask: Ask, damage: Callable[[Path], object]) -> None:
    request = ask()
    good, bad = planned = cells(request)
    settle(request, planned)
    for cell in planned:
        finish(cell, nmi=0.5, acc=0.25, ari=0.1)
    damage(bad.path)
    *words, outcome = reproduce(request, planned)
    assert [word.news.reason for word in words if isinstance(word.news, Ended)] == [bad.fault]
    assert outcome.failures == {bad.name: bad.fault}
    assert f"{bad.path} is no cell of this fedmcc, or damaged: delete it" in bad.fault
    assert (request.out / "table.md").read_text().count("25.0") == 1
    assert good.done


def test_rows_and_columns_say_which_data_set_a_scale_uses_instead(tmp_path: Path) -> None:
    for name in ("accuracy-per-round", "update-both", "tsne"):
        (tmp_path / name).mkdir()
        request = Request(load_table(name), "smoke", tmp_path / name)
        planned = cells(request)
        write_table(request, planned, collect(request.table, planned, {}))
        assert ", on digits" in (tmp_path / name / "table.md").read_text()


def test_cells_that_fail_say_why_and_the_others_go_on(ask: Ask, tmp_path: Path) -> None:
    good, bad = cells(ask())
    settle(ask(), [good, bad])
    bad = replace(bad, config=replace(bad.config, views=replace(bad.config.views, size=2)))
    words = [word for word in run_cells([bad, good], 1) if isinstance(word.news, Ended)]
    assert [(word.cell.name, bool(word.news.reason)) for word in words] == [
        (bad.name, True),
        (good.name, False),
    ]
    assert "2" in words[0].news.reason
    assert (good.done, bad.done) == (True, False)


def test_curves_count_rounds_through_all_stages(ask: Ask, tmp_path: Path) -> None:
    request = ask("accuracy-per-round")
    planned = cells(request)
    cell = next(cell for cell in planned if cell.row == "fedmcc")
    cell.path.mkdir(parents=True)
    rows = [("representation", {"kmeans_acc": 0.5}), ("clustering", {"acc": 0.75})]
    lines = (json.dumps({"stage": stage, "round": 1} | scores) for stage, scores in rows)
    (cell.path / "metrics.jsonl").write_text("\n".join(lines))
    points = curves.rows(request.table, planned)
    assert [(point.curve, point.round, point.score) for point in points] == [
        ("FedMCC, k-means", 1, 0.5),
        ("FedMCC, head", 2, 0.75),
    ]
    assert "FedMCC, head" in figures.draw(request, planned)
    assert len((tmp_path / "figure.csv").read_text().splitlines()) == 3


def test_features_are_drawn_half_way_as_a_run_of_half_the_rounds_leaves_them(tmp_path: Path) -> None:
    def done(rounds: int) -> Cell:
        request = Request(
            load_table("tsne"), "smoke", tmp_path / str(rounds), 1, 1, (f"method.rounds={rounds}",)
        )
        settle(request, cells(request))
        cell = next(cell for cell in cells(request) if cell.row == "mcc")
        assert [word.news for word in run_cells([cell], 1)][-1] == Ended()
        return cell

    two, four = done(2), done(4)
    moments = [point.when for point in tsne.rows(load_table("tsne"), [four])]
    assert list(dict.fromkeys(moments)) == ["before", "round 2", "after"]
    half_way = load_state(four.run.model_file.with_name("round-000002.safetensors"))
    final = load_state(two.run.model_file)
    assert half_way.keys() == final.keys()
    assert all(torch.equal(half_way[name], final[name]) for name in final)


def test_rounds_that_are_drawn_are_the_papers_and_train_the_encoder() -> None:
    found = {}
    for scale in ("paper", "small", "smoke"):
        request = Request(load_table("tsne"), scale, Path())
        found[scale] = {cell.row: tsne.moments(cell.config) for cell in cells(request)}
    assert found["paper"] == {"fedmcc": [10, 50], "mcc": [100, 500]}
    assert found["small"] == {"fedmcc": [2], "mcc": [2, 8]}
    assert found["smoke"] == {"fedmcc": [], "mcc": []}


def test_operations_are_those_of_the_architecture_by_hand(ask: Ask) -> None:
    found = cost.Estimator().cost(cells(ask("centralized"))[0].config)
    first, last = 8 * 8 * 9 * 1 * 4, 4 * 4 * 4 * 32  # the convnet of width 4 at 8 px: multiplications
    heads = (32 * 16 + 16 * 8) + (32 * 16 + 16 * 10)
    # cc has one branch, both views: forward, and back to weights and, but for the images, inputs.
    step = 2 * 2 * (3 * (first + last + heads) - first)
    assert found is not None
    assert found.seen == 200
    assert step < found.operations / found.seen < 1.15 * step  # the rest is the loss
    assert found.parameters == 9 * 4 + 16 * 4 * 32 + 2 * (4 + 32) + heads + 16 + 8 + 16 + 10
