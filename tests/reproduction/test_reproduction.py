"""The cells of a table, their results, how the table is written, and what it costs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedmcc import config
from fedmcc.errors import InputError
from fedmcc.reproduction.cell_workers import run_cells
from fedmcc.reproduction.cells import Cell, Request, plan_cells, selected, write_plan
from fedmcc.reproduction.render import write_table
from fedmcc.reproduction.reproduce import reproduce
from fedmcc.reproduction.results import Entry, collect
from fedmcc.reproduction.reuse import copy_equal_run
from fedmcc.reproduction.run_cell import Ended
from fedmcc.reproduction.table_spec import load_table
from fedmcc.runs.directory import FORMAT

pytestmark = pytest.mark.slow  # whole runs or processes

MakeRequest = Callable[..., Request]


@pytest.fixture
def request_for(tmp_path: Path) -> MakeRequest:
    def make(table: str = "momentum", seeds: int = 1, *settings: str) -> Request:
        return Request(load_table(table), "smoke", tmp_path, seeds, settings=settings)

    return make


def finish(cell: Cell, **scores: float) -> None:
    """Write the files of a finished run that tables read."""
    cell.path.mkdir(parents=True)
    cell.run.config_file.touch()
    cell.run.write_json("scores.json", {"scores": {"head": scores, "features": scores}})


def test_mean_and_sample_deviation_are_beside_the_papers_figure() -> None:
    entry = Entry({"acc": [90.0, 92.0, 94.0]}, {"acc": 87.3}, seeds=3)
    assert entry.text("acc") == "92.0 ± 2.0 (87.3)"
    assert replace(entry, seeds=5).text("acc") == "92.0 ± 2.0, 3 of 5 seeds (87.3)"
    assert Entry({"acc": [90.0]}, {}, seeds=1).text("acc") == "90.0"


def test_a_missing_score_has_a_reason(request_for: MakeRequest) -> None:
    request = request_for("federated-iid")
    planned = plan_cells(request)
    finish(planned[0], nmi=0.5, acc=0.25, ari=0.1)
    entries = collect(request.table, planned, {planned[1].name: "No such folder."}).entries
    texts = {row: entries[row, "mnist"].text("acc") for row in ("fedu-kmeans", "fedu-mcc", "cc", "ncc")}
    assert texts["fedu-kmeans"] == "25.0 (80.6)"
    assert texts["fedu-mcc"].startswith("failed (83.7) [")
    assert (texts["cc"], texts["ncc"]) == ("not yet (80.8)", "see centralized")
    assert entries["cc", "stl10"].text("acc") == "not run (49.3)"


def test_a_row_can_use_the_runs_of_another(request_for: MakeRequest) -> None:
    request = request_for("federated-iid")
    planned = plan_cells(request)
    finish(next(cell for cell in planned if cell.row == "fedmcc"), nmi=0.5, acc=0.25, ari=0.1)
    entries = collect(request.table, planned, {}).entries
    assert entries["fedmcc-kmeans", "mnist"].text("acc") == "25.0"
    assert "fedmcc-kmeans" not in {cell.row for cell in planned}


def test_both_files_have_scores_protocol_scale_seeds_and_failures(
    request_for: MakeRequest, tmp_path: Path
) -> None:
    request = request_for("momentum", 2)
    planned = plan_cells(request)
    finish(planned[0], nmi=0.5, acc=0.25, ari=0.1)
    write_table(request, planned, collect(request.table, planned, {planned[1].name: "Out of <disk>."}))
    texts = ("25.0, 1 of 2 seeds (52.4)", "200 images", "Seeds 0 to 1", "scored on the training images")
    for name, reason in (("table.md", "Out of <disk>."), ("table.html", "Out of &lt;disk&gt;.")):
        content = (tmp_path / name).read_text()
        assert all(text in content for text in (*texts, reason))


def test_a_table_that_is_not_in_the_paper_quotes_nothing(request_for: MakeRequest, tmp_path: Path) -> None:
    request = request_for("generalisation", 2)
    planned = plan_cells(request)
    finish(planned[0], acc=0.25)
    write_table(request, planned, collect(request.table, planned, {}))
    content = (tmp_path / "table.md").read_text()
    assert "25.0, 1 of 2 seeds |" in content
    assert not any(text in content for text in ("of the paper", "paper's figure", "(ours)", "MNIST, IID"))


def test_our_own_tables_have_a_grid_per_data_set_and_the_mean_of_the_columns_that_all_rows_have(
    tmp_path: Path,
) -> None:
    request = Request(load_table("generalisation"), "small", tmp_path, 2)
    planned = plan_cells(request)
    scores = {"fedu": (0.2, 0.4), "default": (0.5, 0.9)}  # by seed, in two columns
    for cell in planned:
        if cell.row in scores and cell.column in ("digits-iid", "mnist-iid"):
            finish(cell, acc=scores[cell.row][cell.seed] + 0.1 * (cell.column == "mnist-iid"))
    extra = next(cell for cell in planned if (cell.row, cell.column) == ("fedu", "kmnist-iid"))
    finish(extra, acc=0.9)  # in a column that is not complete
    write_table(request, planned, collect(request.table, planned, {}))
    content = (tmp_path / "table.md").read_text()
    assert [f"## {name}\n" in content for name in ("digits", "mnist", "kmnist", "cifar10")] == [True] * 4
    means = content.split("## Mean over 2 of 16 columns")[1].split("##")[0]
    assert "| FedU, m = .95, informative | 35.0 ± 14.1 |" in means
    assert "| FedMCC, informative (the default) | 75.0 ± 28.3 |" in means


def test_the_seed_of_a_cell_also_draws_the_classes_of_a_thinned_data_set(request_for: MakeRequest) -> None:
    cells = [cell for cell in plan_cells(request_for("generalisation", 2)) if cell.row == "default"]
    seeds = {(cell.column, cell.seed, cell.config.data.thinning_seed) for cell in cells}
    whole, thinned = "digits-by_class", "digits-thinned"
    assert seeds == {(whole, 0, 0), (whole, 1, 0), (thinned, 0, 0), (thinned, 1, 1)}
    write_plan(request_for("generalisation", 1), cells[:2])
    write_plan(request_for("generalisation", 2), cells)  # another seed is not another recipe


def test_the_table_has_the_mean_processor_time_of_each_row(request_for: MakeRequest, tmp_path: Path) -> None:
    request = request_for("federated-iid", 2)
    planned = plan_cells(request)
    cells = [cell for cell in planned if cell.row == "fedmcc"]
    for cell, seconds in zip(cells, (1000.0, 3000.0), strict=True):
        finish(cell, nmi=0.5, acc=0.25, ari=0.1)
        cell.run.write_json("time.json", {"processor_seconds": seconds})
    write_table(request, planned, collect(request.table, planned, {}))
    content = (tmp_path / "table.md").read_text().split("Processor time")[1]
    assert "| Fed + CC | – |" in content
    assert content.count("| 2,000 |") == 2  # FedMCC, and k-means on its features


def test_a_folder_of_another_table_scale_or_setting_is_refused(request_for: MakeRequest) -> None:
    write_plan(request_for(), plan_cells(request_for()))
    write_plan(request_for("momentum", 3), plan_cells(request_for("momentum", 3)))  # more seeds may be added
    for other in (
        request_for("local-epochs"),
        replace(request_for(), scale="small"),
        request_for("momentum", 1, "data.limit=99"),
    ):
        with pytest.raises(InputError, match="choose another folder with --out"):
            write_plan(other, plan_cells(other))


def test_rows_and_columns_can_be_added_to_a_folder_and_the_table_shows_all(
    request_for: MakeRequest, tmp_path: Path
) -> None:
    first = replace(request_for("federated-iid"), rows=("cc",))
    planned = plan_cells(first)
    write_plan(first, selected(first, planned))
    finish(selected(first, planned)[0], nmi=0.5, acc=0.25, ari=0.1)
    second = replace(first, rows=("fedmcc",), settings=("data.limit=99",))
    write_plan(second, selected(second, plan_cells(second)))
    assert json.loads((tmp_path / "plan.json").read_text())["recipes"].keys() == {"cc-mnist", "fedmcc-mnist"}
    assert collect(second.table, plan_cells(second), {}).entries["cc", "mnist"].text("acc") == "25.0 (80.8)"
    with pytest.raises(InputError, match="started with other recipes or settings"):
        write_plan(replace(second, rows=("cc",)), selected(replace(second, rows=("cc",)), plan_cells(second)))


def test_an_option_that_only_the_chosen_rows_have_can_be_set(request_for: MakeRequest) -> None:
    request = request_for("federated-iid", 1, "method.positive_in_denominator=true")
    planned = plan_cells(replace(request, rows=("fedmcc",)))
    (cell,) = (cell for cell in planned if cell.row == "fedmcc")
    assert config.name_of("method", cell.config.method) == "fedmcc"
    assert cell.config.method.positive_in_denominator
    assert "fedu-kmeans" not in {cell.row for cell in planned}
    with pytest.raises(InputError, match="Unknown key in \\[method\\] 'positive_in_denominator'"):
        plan_cells(replace(request, rows=("fedu-kmeans",)))
    with pytest.raises(InputError, match="positive_in_denominator"):
        plan_cells(request)


def test_an_unknown_row_or_column_is_refused(request_for: MakeRequest) -> None:
    with pytest.raises(InputError, match="Unknown column of momentum 'mnst'"):
        replace(request_for(), columns=("mnst",))


def test_a_folder_with_other_files_is_not_changed(request_for: MakeRequest, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match=r"has no plan\.json: choose another folder"):
        write_plan(request_for(), plan_cells(request_for()))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_command_that_was_killed_before_it_wrote_its_plan_can_be_repeated(
    request_for: MakeRequest, tmp_path: Path
) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / ".plan.json.abc").write_text("half a")
    write_plan(request_for(), plan_cells(request_for()))
    assert (tmp_path / "plan.json").exists()


def test_the_seed_cannot_be_set(request_for: MakeRequest) -> None:
    with pytest.raises(InputError, match="--seeds"):
        request_for("momentum", 1, "seed=5")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no scores": lambda path: (path / "scores.json").write_text("{}"),
    "half a file": lambda path: (path / "scores.json").write_text('{"scores": {'),
    "of a later version": lambda path: (path / "environment.json").write_text('{"format": 99}'),
    "no configuration": lambda path: (path / "config.toml").unlink(),
    "another evaluation": lambda path: (path / "evaluation.json").write_text('{"clustering": {"acc": 1}}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cell_does_not_affect_the_others(
    request_for: MakeRequest, damage: Callable[[Path], object]
) -> None:
    request = request_for()
    good, bad = planned = plan_cells(request)
    write_plan(request, planned)
    for cell in planned:
        finish(cell, nmi=0.5, acc=0.25, ari=0.1)
    damage(bad.path)
    *events, outcome = reproduce(request, planned)
    assert [event.reason for _, event in events if isinstance(event, Ended)] == [bad.error]
    assert outcome.failures == {bad.name: bad.error}
    assert f"{bad.path} is damaged or was not written by this version of fedmcc: delete it" in bad.error
    assert (request.out / "table.md").read_text().count("25.0") == 1
    assert good.done


def test_rows_and_columns_name_the_data_set_that_a_scale_uses_instead(tmp_path: Path) -> None:
    for name in ("accuracy-per-round", "update-both", "tsne"):
        (tmp_path / name).mkdir()
        request = Request(load_table(name), "smoke", tmp_path / name)
        planned = plan_cells(request)
        write_table(request, planned, collect(request.table, planned, {}))
        assert ", on digits" in (tmp_path / name / "table.md").read_text()


def test_a_failed_cell_has_a_reason_and_the_others_run(request_for: MakeRequest, tmp_path: Path) -> None:
    good, bad = plan_cells(request_for())
    write_plan(request_for(), [good, bad])
    bad = replace(bad, config=replace(bad.config, views=replace(bad.config.views, size=2)))
    ended = [(cell.name, event) for cell, event in run_cells([bad, good], 1) if isinstance(event, Ended)]
    assert [(name, bool(event.reason)) for name, event in ended] == [(bad.name, True), (good.name, False)]
    assert "2" in ended[0][1].reason
    assert (good.done, bad.done) == (True, False)


@pytest.mark.parametrize(("change", "copied"), [((), True), (("method.momentum=0.9",), False)])
def test_a_cell_of_another_table_with_the_same_recipe_is_copied(
    tmp_path: Path, change: tuple[str, ...], copied: bool
) -> None:
    def cell_of(table: str, row: str, *settings: str) -> Cell:
        request = Request(load_table(table), "paper", tmp_path / table, settings=settings)
        planned = plan_cells(request)
        write_plan(request, planned)
        return next(cell for cell in planned if cell.row == row)

    trained, cell = cell_of("momentum", "m0.99"), cell_of("local-epochs", "E5-R100", *change)
    trained.path.mkdir(parents=True)
    trained.run.config_file.write_text(config.dump(trained.config))
    trained.run.write_json("environment.json", {"format": FORMAT})
    trained.run.write_json("scores.json", {"scores": {"head": {"acc": 0.25}}})
    assert copy_equal_run(cell) == copied
    assert cell.done == copied
    assert not copy_equal_run(replace(cell, seed=1, path=cell.path.with_name("other")))
    assert not copy_equal_run(replace(cell, protocol="tsne", path=cell.path.with_name("other")))
