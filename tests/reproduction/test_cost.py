"""What a table costs, estimated without loading data."""

from pathlib import Path

from fedmcc import config
from fedmcc.reproduction import cost
from fedmcc.reproduction.cells import Cell, Request, plan_cells
from fedmcc.reproduction.scales import cell_config
from fedmcc.reproduction.table_spec import load_table


def centralized() -> list[Cell]:
    """The cells of the centralized table at the scale smoke."""
    return plan_cells(Request(load_table("centralized"), "smoke", Path()))


def test_every_method_of_the_centralized_table_has_a_cost() -> None:
    estimator = cost.Estimator()
    for cell in centralized():
        estimate = estimator.cost(cell.config)
        assert estimate is not None
        assert (estimate.operations > 0) == (config.name_of("method", cell.config.method) != "raw")


def test_unlabelled_images_that_train_instances_alone_have_a_cost_of_their_own() -> None:
    table = load_table("centralized")
    every, joint = (
        cost.Estimator().cost(
            cell_config(table, table.rows["mcc"], table.columns["stl10"], "paper", [f"data.split={split}"])
        )
        for split in ("train+test+unlabelled", "train+test")
    )
    assert every is not None
    assert joint is not None
    assert (every.samples, joint.samples) == (1000 * 113_000, 1000 * 13_000)
    per_image = (every.operations - joint.operations) / (every.samples - joint.samples)
    assert 0.9 < per_image / (joint.operations / joint.samples) < 1  # without the cluster projector


def test_operations_agree_with_a_count_by_hand() -> None:
    cell = next(cell for cell in centralized() if cell.row == "cc")
    estimate = cost.Estimator().cost(cell.config)
    first, last = 8 * 8 * 9 * 1 * 4, 4 * 4 * 4 * 32  # the convnet of width 4 at 8 px: multiplications
    heads = (32 * 16 + 16 * 8) + (32 * 16 + 16 * 10)
    # cc has one branch and two views: forward, backward to the weights and, after the first layer, to inputs.
    step = 2 * 2 * (3 * (first + last + heads) - first)
    assert estimate is not None
    assert estimate.samples == 200
    assert step < estimate.operations / estimate.samples < 1.15 * step  # the rest is the loss
    assert estimate.parameters == 9 * 4 + 16 * 4 * 32 + 2 * (4 + 32) + heads + 16 + 8 + 16 + 10
