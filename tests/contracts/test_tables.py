"""Every table is complete: its figures as the paper prints them, and a recipe for each cell and scale."""

import math
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from fedmcc import config
from fedmcc.data import DATASETS
from fedmcc.reproduction import scales
from fedmcc.reproduction.table_spec import Table, load_table, read_shared, table_names
from fedmcc.runs.resolve import stages

PRINTED = {  # number of figures, counted in the paper; dashes do not count
    "federated-iid": 5 * 15 - 3,
    "federated-noniid": 5 * 15 - 3,
    "linear-resnet50": 8 * 4,
    "linear-resnet18": 6 * 4,
    "semi-supervised": 9 * 4 - 2,
    "centralized": 18 * 18 - 35,
    "update-both": 6 * 3 * 2,  # and FedMCC of the federated tables beside it
    "local-epochs": 4 * 12,
    "momentum": 2 * 12,
    "accuracy-per-round": 0,
    "tsne": 2,
    "generalisation": 0,  # not in the paper
    "ablation": 0,  # not in the paper
}


def figures(table: Table) -> list[float]:
    """All printed figures of a table."""
    values = (value for row in table.rows.values() for cell in row.paper.values() for value in cell)
    return [value for value in values if not math.isnan(value)]


def test_every_table_and_figure_of_the_paper_is_there() -> None:
    assert set(table_names()) == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_table_has_all_figures_that_the_paper_prints_in_percent(name: str) -> None:
    table = load_table(name)
    assert len(figures(table)) == PRINTED[name]
    assert all(0 < figure < 100 for figure in figures(table))
    for row in table.rows.values():
        assert row.paper.keys() <= table.columns.keys()
        assert all(len(cell) <= len(table.scores) for cell in row.paper.values())


@pytest.mark.parametrize("scale", scales.SCALES)
@pytest.mark.parametrize("name", PRINTED)
def test_every_cell_has_a_recipe_that_the_scale_turns_into_a_configuration(name: str, scale: str) -> None:
    table = load_table(name)
    pairs = scales.cells_at(table, scale)
    assert pairs
    for row, column in pairs:
        loaded = scales.cell_config(table, row, column, scale, [])
        assert scale != "smoke" or config.name_of("data", loaded.data) == "digits"
        assert scale == "paper" or config.name_of("encoder", loaded.encoder) in ("convnet", "pixels")


@pytest.mark.parametrize("name", PRINTED)
def test_the_scale_paper_does_not_change_the_recipes_of_the_papers_rows(name: str) -> None:
    table = load_table(name)
    for row, column in scales.cells_at(table, "paper"):
        if not row.ours and table.kind == "table":
            scaled = scales.cell_config(table, row, column, "paper", [])
            assert scaled == config.load(scales.recipe_file(row, column))


@pytest.mark.parametrize("name", PRINTED)
def test_at_the_small_scale_rows_of_a_column_differ_in_method_and_clustering_only(name: str) -> None:
    table, settings, default = load_table(name), dict[Any, Any](), config.parse({})
    for row, column in scales.cells_at(table, "small"):
        loaded = scales.cell_config(table, row, column, "small", [])
        method, clustering = default.method, default.clustering
        rest = replace(loaded, method=method, clustering=clustering, federation=default.federation)
        if config.name_of("encoder", loaded.encoder) == "pixels":  # k-means and spectral clustering of pixels
            assert not any(stage.epochs for stage in stages(loaded))
            continue
        trainer = table.rows[row.features_of or row.key]
        trained = scales.cell_config(table, trainer, column, "small", [])
        encoding = [stage for stage in stages(trained) if {"online", "online.encoder"} & {*stage.trained}]
        epochs = sum(stage.rounds * stage.epochs for stage in encoding)
        rounds = sum(stage.rounds for stage in encoding) if name != "local-epochs" else None
        compared = (column.key, row.values.get("kind"))  # rows of update-both have their own partition
        assert settings.setdefault(compared, (rest, epochs, rounds)) == (rest, epochs, rounds)


def test_every_row_of_the_centralized_table_runs_at_every_scale() -> None:
    table = load_table("centralized")
    for scale, columns in (("smoke", 1), ("small", 2), ("paper", 6)):
        cells = {(row.key, column.key) for row, column in scales.cells_at(table, scale)}
        assert len(cells) == columns * len(table.rows)
    assert table.columns["mnist"].ours


def test_the_generalisation_table_crosses_four_data_sets_with_four_kinds_of_clients() -> None:
    table, found = load_table("generalisation"), set()
    assert not table.paper
    for row, column in scales.cells_at(table, "small"):
        loaded = scales.cell_config(table, row, column, "small", [])
        kind = (loaded.partition.name, loaded.partition.clients, loaded.data.thinned)
        found.add((row.key, config.name_of("data", loaded.data), kind))
    kinds = [("iid", 5, 1.0), ("by_class", 5, 1.0), ("dirichlet", 5, 1.0), ("iid", 5, 10.0)]
    rows = {row.key for row, _ in table.trained()}
    assert found == {
        (row, data, kind)
        for row in rows
        for data in ("digits", "mnist", "kmnist", "cifar10")
        for kind in kinds
    }


def test_the_ablation_crosses_representations_with_clusterings_of_one_encoder_each() -> None:
    table = load_table("ablation")
    trained = {row.key for row, _ in table.trained() if row.features_of is None}
    assert trained == {"fedu", "fedema", "fedsimclr", "fedmcc"}
    columns = {column.key for _, column in scales.cells_at(table, "small")}
    crossed = {
        (row.features_of or row.key, config.dump(cell_config), column.key)
        for row, column in scales.cells_at(table, "small")
        for cell_config in [scales.cell_config(table, row, column, "small", [])]
    }
    assert len(crossed) == len(trained) * len(columns) * 4  # informative, k-means, votes, contrast


def test_splits_of_the_data_table_are_splits_of_the_data_set() -> None:
    for name, facts in read_shared("datasets").items():
        split = get_type_hints(DATASETS[name]).get("split")
        known = {part for names in split.__args__ for part in names.split("+")} if split else {"all"}
        assert facts["images"].keys() == known


@pytest.mark.parametrize("name", PRINTED)
def test_every_row_has_a_recipe_or_uses_the_runs_of_another_row_or_has_a_note(name: str) -> None:
    table = load_table(name)
    run = {row.key for row, _ in table.trained()}
    for row in table.rows.values():
        assert row.key in run or row.same_as in run or row.note
    for misprint in table.misprints:
        assert misprint.column in table.rows[misprint.row].paper


@pytest.mark.parametrize("kind", ["iid", "noniid"])
def test_figures_printed_in_several_tables_are_the_same(kind: str) -> None:
    first = load_table(f"federated-{kind}").rows["fedmcc"].paper
    for table, row in (("local-epochs", "E5-R100"), ("momentum", "m0.99")):
        again = load_table(table).rows[row].paper
        assert all(again[f"{data}-{kind}"] == first[data] for data in ("cifar10", "cifar100"))
    assert load_table("update-both").rows[f"mnist-{kind}"].paper["online"] == first["mnist"]


def test_figures_are_those_that_the_papers_text_quotes() -> None:
    iid, noniid = (load_table(f"federated-{kind}").rows for kind in ("iid", "noniid"))
    gains = [
        iid["fedmcc"].paper["cifar10"][1] - iid["fedu-mcc"].paper["cifar10"][1],
        iid["fedmcc"].paper["mnist"][1] - iid["fedu-mcc"].paper["mnist"][1],
        noniid["fedmcc"].paper["mnist"][1] - noniid["fedu-mcc"].paper["mnist"][1],
    ]
    assert gains == pytest.approx([6.9, 3.6, 2.9])
    mcc = load_table("centralized").rows["mcc"].paper
    assert (mcc["stl10"][1], mcc["imagenet10"][1]) == (87.0, 95.9)
    assert load_table("linear-resnet18").rows["fedmcc-tuned"].paper["cifar10-noniid"] == [85.2]
    semi = load_table("semi-supervised").rows
    assert [semi[row].paper["noniid"][1] for row in ("fedmcc-18", "fedmcc-tuned-18")] == [82.0, 82.0]
