import math

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.messages import Task
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.fedu import FedU
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select


def _setup(seed=0, **fields):
    method = FedU(hidden=16, projections=8, **fields)
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(seed))
    return net, method.stages()[0]


def _shared(net, stage):
    return detached(select(net.state_dict(), stage.shared))


def _move(net, by):
    """Shift all parameters of encoder, projector and predictor, as training would."""
    with torch.no_grad():
        for parameter in (*net.online.parameters(), *net.predictor.parameters()):
            parameter.add_(by)


def _mean_distance(net, difference):
    """Mean distance over the convolutions if every entry differs by `difference`."""
    sizes = [module.weight.numel() for module in net.modules() if isinstance(module, torch.nn.Conv2d)]
    kernels = sizes[: len(sizes) // 2]  # the second half belongs to the target
    return abs(difference) * sum(math.sqrt(size) for size in kernels) / len(kernels)


def _same(module, state, prefix):
    return all(torch.equal(value, state[f"{prefix}.{name}"]) for name, value in module.state_dict().items())


def _second_round(divergence, factor):
    """Train by 0.01, then receive a global model 0.03 away; threshold: `factor` times the divergence."""
    scale = {"global": 0.03, "moved": 0.01}[divergence]
    probe, _ = _setup()
    net, stage = _setup(threshold=factor * _mean_distance(probe, scale), divergence=divergence)
    memory = {}
    stage.receive(net, Task(0, stage.name, 1, _shared(net, stage)), memory)
    _move(net, 0.01)
    local = detached(net.state_dict())
    _move(net, 0.03)
    incoming = _shared(net, stage)
    net.load_state_dict(local)
    stage.receive(net, Task(0, stage.name, 2, incoming), memory)
    return net, local, incoming


@pytest.mark.parametrize("divergence", ["global", "moved"])
@pytest.mark.parametrize(("factor", "takes"), [(1.01, True), (0.99, False)])
def test_the_predictor_is_taken_below_the_threshold_and_kept_above(divergence, factor, takes):
    net, local, incoming = _second_round(divergence, factor)
    assert _same(net.predictor, incoming if takes else local, "predictor")
    assert _same(net.online, incoming, "online")  # encoder and projector are always replaced
    assert _same(net.target, local, "target")


def test_movement_is_measured_from_the_last_received_model():
    net, stage = _setup(threshold=1.0, divergence="moved")
    memory = {}
    for number in range(1, 5):  # each move is below the threshold, their sum above it
        stage.receive(net, Task(0, stage.name, number, _shared(net, stage)), memory)
        _move(net, 0.9 / _mean_distance(net, 1.0))
    incoming = {name: torch.zeros_like(value) for name, value in _shared(net, stage).items()}
    stage.receive(net, Task(0, stage.name, 5, incoming), memory)
    assert all((value == 0).all() for value in net.predictor.state_dict().values())


def test_the_first_round_takes_everything():
    net, stage = _setup(threshold=1e-9)
    other, _ = _setup(seed=7)
    stage.receive(net, Task(0, stage.name, 1, _shared(other, stage)), {})
    assert _same(net.predictor, other.state_dict(), "predictor")
    assert _same(net.target, other.state_dict(), "online")


def test_it_is_byol_but_for_one_hook():
    own = {name for name in vars(FedU) if not name.startswith("_")} - {"threshold", "divergence", "about"}
    assert own == {"receive"}
    assert type(FedU().stages()[0]) is type(FedBYOL().stages()[0])


def test_memory_holds_kernels_only_if_movement_is_measured():
    for divergence, kept in (("global", 0), ("moved", 2)):
        net, stage = _setup(divergence=divergence)
        memory = {}
        stage.receive(net, Task(0, stage.name, 1, _shared(net, stage)), memory)
        assert sum(value.dim() == 4 for value in memory.values()) == kept


def test_invalid_options_are_refused():
    with pytest.raises(InputError, match=r"method\.threshold"):
        FedU(threshold=0.0)
    with pytest.raises(InputError, match=r"method\.momentum"):
        FedU(momentum=2.0)
