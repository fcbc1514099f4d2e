"""Running statistics that are measured anew on the averaged encoder."""

import pytest
import torch

from fedmcc.config import parse
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.methods.calibration import Calibration
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.momentum import Branch, Network
from fedmcc.networks.running_statistics import has_running_statistics, measured_anew
from fedmcc.numerics.state_dicts import detached, equal_states
from fedmcc.runs.build import prepare


def _network(norm="batch"):
    torch.manual_seed(0)
    return Network(Branch(ConvNetOptions(width=4, norm=norm).build(channels=1, size=16))).train()


def _views(count, offset=0.0):
    return torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(count)) + offset


def test_the_statistics_of_the_first_layer_are_the_mean_over_all_batches():
    net = _network()
    first = next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))
    inputs = []
    first.register_forward_hook(lambda module, given, result: inputs.append(given[0]))
    Calibration().observe(net, [(_views(8), _views(9)), (_views(10, 1.0), _views(11, 1.0))])
    assert len(inputs) == 4
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in inputs]).mean(dim=0)
    variances = torch.stack([batch.var(dim=(0, 2, 3)) for batch in inputs]).mean(dim=0)
    torch.testing.assert_close(first.running_mean, means)
    torch.testing.assert_close(first.running_var, variances)


def test_nothing_else_of_the_encoder_changes():
    net = _network()
    before = detached(net.state_dict())
    Calibration().observe(net, [(_views(8, 3.0), _views(9, 3.0))])
    changed = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert changed
    assert all(name.endswith(("running_mean", "running_var")) for name in changed)
    assert all(m.momentum == 0.1 for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))


def test_an_encoder_without_running_statistics_is_not_run():
    net = _network(norm="group")
    assert not has_running_statistics(net)
    assert has_running_statistics(_network())
    Calibration().observe(net, iter(lambda: pytest.fail("a batch was computed"), None))


def test_momentum_and_counter_are_restored_after_an_error():
    net = _network()
    layer = next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))
    layer.num_batches_tracked.fill_(7)
    with pytest.raises(RuntimeError), measured_anew(net):
        net.online.encoder(torch.zeros(4, 3, 16, 16))  # too many channels
    assert (layer.momentum, int(layer.num_batches_tracked)) == (0.1, 7)


TABLE = {
    "threads": 1,
    "device": "cpu",
    "data": {"name": "digits", "limit": 120},
    "views": {"size": 16},
    "encoder": {"name": "convnet", "width": 4},
    "method": {"name": "fedmcc-plus", "rounds": 2, "hidden": 16, "projections": 8},
    "partition": {"name": "iid", "clients": 3},
    "training": {"batch_size": 20},
}


def _calibrated(**training):
    """The state before and after the stage, in a federation of three clients."""
    experiment = prepare(parse({**TABLE, "training": {**TABLE["training"], **training}}))
    progress = before = Progress(detached(experiment.net.state_dict()))
    stage = next(stage for stage in experiment.stages if stage.name == "calibration")
    for event in rounds(stage, progress, experiment.engine, experiment.clients, experiment.policy(b"")):
        assert isinstance(event, Round)  # nothing is trained
        assert not event.refused
        progress = event.progress
    return before.model, progress.model


def test_in_a_federation_the_encoders_statistics_become_those_of_views_of_all_clients():
    before, after = _calibrated()
    for name, value in after.items():
        statistic = name.startswith("online.encoder") and name.endswith(("running_mean", "running_var"))
        if statistic:
            assert not value.equal(before[name])
        else:
            torch.testing.assert_close(value, before[name])
    assert all((after[name] > 0).all() for name in after if name.endswith("running_var"))


@pytest.mark.parametrize("rule", ["mean", "guarded", "clipped", "median", "krum", "geometric"])
def test_without_running_statistics_the_round_changes_nothing(rule):
    table = {**TABLE, "encoder": {**TABLE["encoder"], "norm": "group"}, "federation": {"aggregation": rule}}
    experiment = prepare(parse(table))
    progress = Progress(detached(experiment.net.state_dict()))
    stage = next(stage for stage in experiment.stages if stage.name == "calibration")
    found = [*rounds(stage, progress, experiment.engine, experiment.clients, experiment.policy(b""))]
    assert equal_states(found[-1].progress.model, progress.model)


def test_chunks_see_the_same_images():
    _, whole = _calibrated()
    _, chunked = _calibrated(chunk=10)  # halves of a batch: the means of the first layer are the same
    first = next(name for name in whole if name.endswith("running_mean"))
    torch.testing.assert_close(chunked[first], whole[first], rtol=1e-4, atol=1e-6)
