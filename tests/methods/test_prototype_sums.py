"""Prototypes from sums alone."""

import logging

import pytest
import torch

from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.centroids import VECTORS
from fedmcc.methods.informative import InformativeClustering
from fedmcc.methods.prototype_sums import PrototypeSums
from fedmcc.networks.momentum import Branch, Network


def _network():
    torch.manual_seed(0)
    clustering = InformativeClustering(prototype_rounds=3, prototypes=2.0)
    net = Network(Branch(torch.nn.Identity()))
    clustering.extend(net, 4, 3)
    return net


def _stage(smallest=1):
    return PrototypeSums(rounds=3, smallest=smallest)


def _update(client, net, features, smallest=1):
    extras = _stage(smallest).extras(net, features.split(7))
    weights = {
        "online.cluster_projector.vectors.weight": net.online.cluster_projector.vectors.weight.detach()
    }
    return Update(client, "prototypes", 1, len(features), None, weights, extras)


def _features(count, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def test_a_sum_is_that_of_the_whitened_features_weighted_by_their_assignments():
    net, features = _network(), _features(20)
    head = net.online.cluster_projector
    whitened, p = head.whitening(features), head.assign_to_prototypes(features)
    sums = _update(0, net, features).extras["sums"]
    for row, found in enumerate(sums):
        expected = sum(p[i, row] * whitened[i] for i in range(20))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_sums_of_two_clients_give_the_prototypes_of_all_images():
    net, features = _network(), _features(30)
    whole = _stage().combine([_update(0, net, features)], net.state_dict()).weights
    parts = [_update(0, net, features[:11]), _update(1, net, features[11:])]
    apart = _stage().combine(parts, net.state_dict()).weights
    torch.testing.assert_close(apart, whole, rtol=1e-4, atol=1e-6)
    lengths = whole[VECTORS].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_prototypes_of_few_images_are_not_sent_and_stay(caplog):
    net, features = _network(), _features(20)
    update = _update(0, net, features, smallest=1000)
    assert not update.extras["sums"].any()
    with caplog.at_level(logging.WARNING):
        combined = _stage().combine([update], net.state_dict()).weights
    assert "have too few images at every client: lower prototypes or smallest" in caplog.text
    torch.testing.assert_close(
        next(iter(combined.values())), net.online.cluster_projector.vectors.weight.data
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_sum_of_images_is_longer_than_the_declared_norm(seed):
    net = _network()
    norm = _stage().additive(_update(0, net, _features(2)).weights)["sums"].norm
    one = _features(1, seed).repeat(8, 1)  # equal images: the longest mean
    assert float(_update(0, net, one).extras["sums"].norm()) / 8 <= norm + 1e-6


def test_sums_that_are_too_long_are_refused():
    net = _network()
    update = _update(0, net, _features(9))
    assert _stage().extras_error(update) == ""
    update.extras["sums"][0, 0] = 100.0
    assert "longer than those of its images" in _stage().extras_error(update)
    update.extras["sums"] = update.extras["sums"].double()
    assert "expected torch.float32" in _stage().extras_error(update)


def test_blobs_of_many_clients_are_found_from_sums_alone():
    torch.manual_seed(1)
    centres = 4 * torch.eye(4)[:3]
    labels = torch.arange(240) % 3
    features = centres[labels] + 0.3 * torch.randn(240, 4)
    clustering = InformativeClustering(prototypes=10.0, prototype_rounds=5, smallest=1, neighbours=5)
    net = Network(Branch(torch.nn.Identity()))
    clustering.extend(net, 4, 3)
    for stage in clustering.stages():
        assert stage.additive(net.state_dict()) is not None
        for _ in range(stage.rounds):
            updates = []
            for client in range(4):
                own = features[client::4]
                extras = stage.extras(net, own.split(32))
                updates.append(Update(client, stage.name, 1, len(own), None, net.state_dict(), extras))
                assert stage.extras_error(updates[-1]) == ""
            net.load_state_dict({**net.state_dict(), **stage.combine(updates, net.state_dict()).weights})
    assert accuracy(labels.numpy(), net.online.cluster_projector(features).argmax(dim=1).numpy()) > 0.98
