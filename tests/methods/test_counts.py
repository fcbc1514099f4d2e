"""As how many images a client counts, in averages and in sums: limited by the median, or equally."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.federation.privacy import Privacy, PrivateAggregator
from fedmcc.messages import Task, Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.cluster_contrast import ClusterContrast
from fedmcc.methods.informative import InformativeClustering
from fedmcc.methods.lloyd import LloydKMeans
from fedmcc.methods.other_clients import part_of_others
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import detached, select

SAMPLES = 60  # of each client
INFORMATIVE = InformativeClustering(prototypes=3.0)


def _points(client):
    draw = torch.Generator().manual_seed(client)
    return torch.eye(6)[np.repeat([client, client + 1], SAMPLES // 2)] + 0.1 * torch.randn(
        SAMPLES, 6, generator=draw
    )


def _claiming(update, times):
    """The update of a client that claims to have each image several times."""
    means = "centroids"
    extras = {
        name: value if name.startswith(means) else value * times for name, value in update.extras.items()
    }
    return replace(update, samples=times * update.samples, extras=extras)


def _update(net, stage, client):
    """The answer of a client in the first round of a stage."""
    net.notes = stage.first_notes(net, SAMPLES)
    weights, extras = select(net.state_dict(), stage.shared), stage.extras(net, [_points(client)])
    return Update(client, stage.name, 1, SAMPLES, None, detached(weights), detached(extras))


def _stages_with_updates(method=INFORMATIVE):
    """The stages of a clustering, with honest updates and the global model of each.

    There are as many clusters as groups of points: which groups fewer ones would join depends on rounding.
    """
    net = Network(Branch(nn.Flatten()))
    method.extend(net, 6, 5)
    for stage in method.stages():
        model = detached(net.state_dict())
        updates = [_update(net, stage, client) for client in range(4)]
        yield stage, updates, model
        net.load_state_dict({**model, **stage.combine(updates, model).weights})


def _in_any_order(name, value):
    """The value without the order of the clusters, which the rounding of large claims may change."""
    if name.endswith("groups"):
        return value @ value.T
    return value.sort().values if name.endswith("marginal") else value


@pytest.mark.parametrize("times", [2, 10**7])
def test_statistics_of_claimed_images_count_as_those_of_twice_the_median(times):
    for stage, updates, model in _stages_with_updates():
        server = replace(stage, samples_limit=2.0)
        claimed = [_claiming(updates[0], times), *updates[1:]]
        doubled = [_claiming(updates[0], 2), *updates[1:]]
        found, expected = server.combine(claimed, model), stage.combine(doubled, model)
        for name, value in expected.weights.items():
            pair = (_in_any_order(name, each) for each in (found.weights[name], value))
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)


def test_without_claims_the_limit_changes_no_bit():
    for stage, updates, model in _stages_with_updates():
        found = replace(stage, samples_limit=2.0).combine(updates, model)
        assert all(
            value.equal(found.weights[name]) for name, value in stage.combine(updates, model).weights.items()
        )


@pytest.mark.parametrize("clustering", [INFORMATIVE, LloydKMeans(rounds=2)])
def test_clipped_clients_count_equally_however_many_images_they_claim(clustering):
    server = PrivateAggregator(Privacy(clip=1e9))
    for stage, updates, model in _stages_with_updates(clustering):
        claimed = [_claiming(updates[0], 100), *updates[1:]]
        found, expected = (server.combine(stage, each, model, 1) for each in (claimed, updates))
        for name, value in expected.weights.items():
            pair = (_in_any_order(name, each) for each in (found.weights[name], value))
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("present", [(100,), (100, 100), (100, 102)])
def test_a_clipped_client_that_was_not_drawn_counts_as_one_of_those_that_were(present):
    (stage,) = ClusterContrast(marginal="all").stages()
    weights, sizes = {f"{HEAD}.bias": torch.zeros(2)}, torch.tensor([0.25, 0.75])
    updates = [
        Update(k, stage.name, 1, count, 0.5, weights, {"sizes": sizes}) for k, count in enumerate(present)
    ]
    extras = PrivateAggregator(Privacy(clip=1.0)).combine(stage, updates, weights, 1).extras
    task = Task(9, stage.name, 2, weights, extras)
    others, share = part_of_others(sizes, "sizes", task, {"samples": torch.tensor(900)})
    assert float(share) == pytest.approx(1 / (len(present) + 1))
    torch.testing.assert_close(others, (1 - share) * sizes.double())


@pytest.mark.parametrize("samples", [40, 1000])
def test_a_client_subtracts_its_sizes_as_often_as_it_was_counted(samples):
    method, net = ClusterContrast(marginal="all"), Network(Branch(nn.Flatten()))
    method.extend(net, 6, 3)
    (stage,), sizes = method.stages(), torch.eye(3)
    shared = detached(select(net.state_dict(), stage.shared))
    updates = [
        Update(k, stage.name, 1, count, None, shared, {"sizes": sizes[k]})
        for k, count in enumerate((samples, 20, 20))
    ]
    extras = replace(stage, samples_limit=2.0).combine(updates, detached(net.state_dict())).extras
    net.sizes.own.copy_(sizes[0])
    memory = {"samples": torch.tensor(samples), "round": torch.tensor(1)}
    stage.receive(net, Task(0, stage.name, 2, shared, extras), memory)
    torch.testing.assert_close(net.sizes.others, torch.tensor([0, 0.25, 0.25]))
    assert float(net.sizes.share) == pytest.approx(0.5)
    assert ("limit" in extras) == (samples == 1000)
