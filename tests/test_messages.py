import numpy as np
import pytest
import torch

from fedmcc.messages import Task, Update, pack, unpack

WEIGHTS = {
    "layer": torch.tensor([1.0, 1 / 3, -2e-8, 65504.0, 1e9, torch.nan]),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
    "counter": torch.tensor(2**40 + 1),
}


def test_packing_rounds_to_half_precision():
    with np.errstate(over="ignore"):
        expected = WEIGHTS["layer"].numpy().astype(np.float16)
    np.testing.assert_array_equal(pack(WEIGHTS)["layer"].numpy(), expected)


@pytest.mark.parametrize("name", ["double", "counter"])
def test_packing_leaves_everything_but_single_precision_alone(name):
    packed = pack(WEIGHTS)
    assert packed[name].dtype == WEIGHTS[name].dtype
    assert torch.equal(packed[name], WEIGHTS[name])


def test_unpacking_gives_single_precision_back_within_the_rounding():
    back = unpack(pack(WEIGHTS))
    assert {name: value.dtype for name, value in back.items()} == {n: v.dtype for n, v in WEIGHTS.items()}
    error = (back["layer"][:2] - WEIGHTS["layer"][:2]).abs() / WEIGHTS["layer"][:2]
    assert error.max() <= 2**-11  # half a unit in the last of 11 binary places


def test_packing_again_rounds_nothing_more():
    once = pack(WEIGHTS)["layer"][:5]
    assert torch.equal(pack(unpack({"layer": once}))["layer"], once)


def test_bytes_are_those_of_weights_and_extras_as_sent():
    extras = {"mean": torch.zeros(10)}
    update = Update(0, "joint", 1, 5, 0.5, WEIGHTS, extras)
    assert update.bytes == 6 * 4 + 8 + 8 + 10 * 4
    assert update.packed().bytes == update.bytes - 6 * 2
    assert update.packed().unpacked().bytes == update.bytes
    assert Task(0, "joint", 1, pack(WEIGHTS), extras, half=True).bytes == update.packed().bytes


def test_a_task_is_unpacked_only_where_it_was_packed():
    kept = {"layer": torch.zeros(3, dtype=torch.float16)}
    assert Task(0, "joint", 1, kept).unpacked().weights["layer"].dtype == torch.float16
    assert Task(0, "joint", 1, kept, half=True).unpacked().weights["layer"].dtype == torch.float32
