import math

import numpy as np
import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.messages import Task
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.fedema import FedEMA
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select


def _setup(seed=0, **fields):
    method = FedEMA(hidden=16, projections=8, **fields)
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(seed))
    return net, method.stages()[0]


def _shared(net, stage):
    return detached(select(net.state_dict(), stage.shared))


def _away(state, by, seed):
    """The state with noise on floating-point tensors, and counters increased by 5."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: value + by * torch.randn(value.shape, generator=draw)
        if value.is_floating_point()
        else value + 5
        for name, value in state.items()
    }


def _divergence(local, incoming):
    """Mean Euclidean distance over the convolutions, in NumPy."""
    names = [
        name for name, value in incoming.items() if name.startswith("online.encoder") and value.dim() == 4
    ]
    return np.mean([np.linalg.norm((local[name] - incoming[name]).numpy().ravel()) for name in names])


def _two_rounds(net, stage, by=0.01, rounds=(1, 2), memory=None):
    """Receive two rounds with training between; returns the local and global weights mixed in the second."""
    memory = {} if memory is None else memory
    stage.receive(net, Task(0, stage.name, rounds[0], _shared(net, stage)), memory)
    net.load_state_dict(_away(net.state_dict(), by, 1))
    local, incoming = detached(net.state_dict()), _away(_shared(net, stage), by, 2)
    stage.receive(net, Task(0, stage.name, rounds[1], incoming), memory)
    return local, incoming, memory


def _is_mix(net, local, incoming, share):
    for name, _ in net.named_parameters():
        if not name.startswith("target."):
            expected = share * local[name].double() + (1 - share) * incoming[name].double()
            torch.testing.assert_close(net.state_dict()[name].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.8, 1.0, 2.5])
def test_the_mix_is_the_formula_by_hand(scale):
    net, stage = _setup(scale=scale)
    local, incoming, memory = _two_rounds(net, stage)
    share = scale * _divergence(local, incoming)
    assert 0.05 < share < 0.95
    _is_mix(net, local, incoming, share)
    assert "scale" not in memory


def test_a_diverged_client_keeps_all_its_parameters_and_takes_the_global_buffers():
    net, stage = _setup(scale=1e6)
    local, incoming, _ = _two_rounds(net, stage)
    _is_mix(net, local, incoming, 1.0)
    for name, value in net.named_buffers():
        if not name.startswith("target."):
            assert torch.equal(value, incoming[name])


def test_the_target_is_kept_when_weights_are_mixed():
    net, stage = _setup()
    local, _, _ = _two_rounds(net, stage)
    assert all(torch.equal(value, local[f"target.{name}"]) for name, value in net.target.state_dict().items())


def test_the_autoscaler_keeps_a_share_of_tau_at_first_and_its_scale_from_then_on():
    net, stage = _setup(autoscale=0.6)
    local, incoming, memory = _two_rounds(net, stage)
    first = _divergence(local, incoming)
    _is_mix(net, local, incoming, 0.6)
    assert float(memory["scale"]) == pytest.approx(0.6 / first, rel=1e-5)
    local, incoming = detached(net.state_dict()), _away(_shared(net, stage), 0.005, 3)
    stage.receive(net, Task(0, stage.name, 3, incoming), memory)
    assert float(memory["scale"]) == pytest.approx(0.6 / first, rel=1e-5)
    second = _divergence(local, incoming)
    assert not math.isclose(first, second, rel_tol=0.1)
    _is_mix(net, local, incoming, 0.6 / first * second)


def test_movement_is_measured_from_where_the_last_training_started():
    net, stage = _setup(scale=1e-3, divergence="moved")
    memory = {}
    stage.receive(net, Task(0, stage.name, 1, _shared(net, stage)), memory)
    for number in (2, 3):  # in the third round, training started from a mixture
        start = _shared(net, stage)
        net.load_state_dict(_away(net.state_dict(), 0.01, number))
        local, incoming = detached(net.state_dict()), _away(_shared(net, stage), 0.05, number + 10)
        stage.receive(net, Task(0, stage.name, number, incoming), memory)
        _is_mix(net, local, incoming, 1e-3 * _divergence(local, start))
        assert not math.isclose(_divergence(local, start), _divergence(local, incoming), rel_tol=0.5)


@pytest.mark.parametrize("rounds", [(1, 3), (2, 7), (4, 4)])
def test_a_client_that_missed_a_round_takes_the_global_model_for_online_and_target(rounds):
    net, stage = _setup()
    _, incoming, memory = _two_rounds(net, stage, rounds=rounds)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in incoming.items())
    assert all(
        torch.equal(value, incoming[f"online.{name}"]) for name, value in net.target.state_dict().items()
    )
    assert int(memory["round"]) == rounds[1]
    assert "scale" not in memory


def test_with_one_client_weights_stay_and_no_scale_is_stored():
    net, stage = _setup()
    memory = {}
    for number in (1, 2, 3):
        before = detached(net.state_dict())
        stage.receive(net, Task(0, stage.name, number, _shared(net, stage)), memory)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert set(memory) == {"round"}


def test_it_is_byol_but_for_one_hook():
    own = {name for name in vars(FedEMA) if not name.startswith("_")} - {
        "scale",
        "autoscale",
        "divergence",
        "about",
    }
    assert own == {"receive"}
    assert type(FedEMA().stages()[0]) is type(FedBYOL().stages()[0])


@pytest.mark.parametrize("field", [{"scale": -1.0}, {"autoscale": 0.0}, {"hidden": 0}])
def test_invalid_options_are_refused(field):
    with pytest.raises(InputError, match=rf"method\.{next(iter(field))}"):
        FedEMA(**field)
