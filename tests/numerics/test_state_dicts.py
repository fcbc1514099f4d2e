import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.numerics.state_dicts import (
    add_prefix,
    copy_into,
    detached,
    interpolate,
    mean_distance,
    select,
    size_in_bytes,
    strip_prefix,
    weighted_average,
)


def _states(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        {"w": torch.randn(3, 4, generator=draw), "b": torch.randn(5, generator=draw)} for _ in range(count)
    ]


def test_average_is_the_weighted_sum_in_double_precision():
    states, weights = _states(4), [10.0, 3.0, 1.0, 700.0]
    result = weighted_average(states, weights)
    for name in ("w", "b"):
        stacked = np.stack([state[name].numpy().astype(np.float64) for state in states])
        expected = np.tensordot(np.array(weights) / 714.0, stacked, axes=1).astype(np.float32)
        assert result[name].dtype == torch.float32
        np.testing.assert_allclose(result[name].numpy(), expected, rtol=1e-7)


def test_average_of_one_state_is_that_state():
    (state,) = _states(1)
    result = weighted_average([state], [37.0])
    assert result.keys() == state.keys()
    assert all(torch.equal(result[name], state[name]) for name in state)


def test_average_does_not_lose_small_weights_among_many_clients():
    """In single precision a sum of ten thousand terms of 1e-4 drifts by about 1e-5."""
    states = [{"w": torch.ones(1)}] * 10_000
    assert weighted_average(states, [1.0] * 10_000)["w"].item() == 1.0


def test_integer_counters_take_their_maximum_and_stay_integers():
    states = [{"count": torch.tensor(value)} for value in (7, 12, 3)]
    result = weighted_average(states, [100.0, 1.0, 1.0])["count"]
    assert result.dtype == torch.int64
    assert result.item() == 12


def test_average_keeps_half_precision():
    states = [
        {"w": torch.tensor([1.0], dtype=torch.bfloat16)},
        {"w": torch.tensor([3.0], dtype=torch.bfloat16)},
    ]
    result = weighted_average(states, [1.0, 3.0])["w"]
    assert result.dtype == torch.bfloat16
    assert result.item() == 2.5


def test_selection_matches_whole_names_only():
    names = ("online.encoder.w", "online.encoder2.w", "online.encoder", "target.online.encoder.w")
    state = {name: torch.zeros(1) for name in names}
    assert set(select(state, ["online.encoder"])) == {"online.encoder.w", "online.encoder"}
    assert select(state, ()) == {}
    assert set(select(state, ("target", "online.encoder2"))) == {
        "online.encoder2.w",
        "target.online.encoder.w",
    }


def test_strip_prefix_undoes_add_prefix_and_ignores_other_prefixes():
    (state,) = _states(1)
    mixed = add_prefix("net", state) | {"network.w": torch.zeros(1), "net": torch.zeros(1)}
    result = strip_prefix("net", mixed)
    assert result.keys() == state.keys()
    assert all(result[name] is state[name] for name in state)


def test_detached_state_is_not_changed_by_training():
    net = nn.Linear(2, 2)
    copy = detached(net.state_dict())
    before = {name: value.clone() for name, value in copy.items()}
    with torch.no_grad():
        net.weight.add_(1)
        net.bias.zero_()
    assert all(torch.equal(copy[name], before[name]) for name in before)
    assert not any(value.requires_grad for value in detached(dict(net.named_parameters())).values())


def test_copy_into_overwrites_the_given_tensors_and_leaves_the_others():
    net = nn.Linear(2, 2)
    bias = net.bias.detach().clone()
    copy_into(net, {"weight": torch.full((2, 2), 5.0)})
    assert torch.equal(net.weight.detach(), torch.full((2, 2), 5.0))
    assert torch.equal(net.bias.detach(), bias)


def test_copying_an_unknown_name_is_an_error():
    with pytest.raises(KeyError, match=r"weights"):
        copy_into(nn.Linear(2, 2), {"weights": torch.zeros(2, 2)})


def test_size_in_bytes_counts_the_elements():
    state = {"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.int64), "c": torch.zeros(())}
    assert size_in_bytes(state) == 3 * 5 * 4 + 2 * 8 + 4
    assert size_in_bytes({}) == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_interpolation_weights_the_first_state_by_its_share(share):
    a, b = _states(2)
    result = interpolate(a, b, share)
    for name in ("w", "b"):
        expected = share * a[name].numpy().astype(np.float64) + (1 - share) * b[name].numpy().astype(
            np.float64
        )
        np.testing.assert_allclose(result[name].numpy(), expected.astype(np.float32), rtol=1e-7)


def test_interpolation_at_its_ends_is_bit_identical_to_one_of_the_two():
    a, b = _states(2)
    assert all(torch.equal(interpolate(a, b, 1.0)[name], a[name]) for name in a)
    assert all(torch.equal(interpolate(a, b, 0.0)[name], b[name]) for name in a)


def test_interpolation_has_the_names_of_the_first_and_the_larger_counter():
    a, b = {"count": torch.tensor(3)}, {"count": torch.tensor(8), "w": torch.zeros(2)}
    result = interpolate(a, b, 0.9)
    assert result.keys() == {"count"}
    assert result["count"].item() == 8


def test_mean_distance_is_the_mean_over_tensors_of_their_euclidean_distance():
    a = {"x": torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "y": torch.tensor([1.0])}
    b = {"x": torch.zeros(2, 2), "y": torch.tensor([-2.0]), "z": torch.ones(9)}
    assert mean_distance(a, b) == pytest.approx((5 + 3) / 2)
    assert mean_distance(a, a) == 0.0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_average_in_blocks_is_bit_identical_to_one_sum_over_whole_tensors(monkeypatch, layout):
    monkeypatch.setattr("fedmcc.numerics.state_dicts.BLOCK_ELEMENTS", 50)
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(7, 5, 3, 3, generator=draw).to(memory_format=layout)} for _ in range(4)]
    weights = [3.0, 1.0, 0.5, 7.0]
    expected = torch.zeros(7, 5, 3, 3, dtype=torch.float64)
    for state, weight in zip(states, weights, strict=True):
        expected.add_(state["w"], alpha=weight / 11.5)
    result = weighted_average(states, weights)["w"]
    assert torch.equal(result, expected.float())
    assert result.stride() == states[0]["w"].stride()


def test_copying_another_shape_is_an_error_and_changes_nothing():
    net = nn.Linear(2, 2)
    before = detached(net.state_dict())
    with pytest.raises(ValueError, match=r"weight has shape \(1, 2\), expected \(2, 2\)"):
        copy_into(net, {"bias": torch.zeros(2), "weight": torch.zeros(1, 2)})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
