"""k-FED: clients with few clusters each find all of them in one round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD, MAX_FEATURE
from fedmcc.methods.k_fed import KFed, clearly_nearest, farthest
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import detached, select

DRAW = np.random.default_rng(0)


def _blobs(blobs=10, each=40, dimensions=6):
    labels = np.arange(blobs * each) // each
    centres = 20 * np.random.default_rng(1).normal(size=(blobs, dimensions))
    return torch.from_numpy(centres[labels] + DRAW.normal(size=(blobs * each, dimensions))).float(), labels


def _net(method, features, clusters):
    net = Network(Branch(nn.Flatten()))
    method.extend(net, features, clusters)
    return net


def _updates(net, stage, shards):
    shared = detached(select(net.state_dict(), stage.shared))
    return [
        Update(client, stage.name, 1, len(points), None, shared, stage.extras(net, points.split(16)))
        for client, points in enumerate(shards)
    ]


def _fit(method, shards, clusters):
    net, (stage,) = _net(method, shards[0].shape[1], clusters), method.stages()
    updates = _updates(net, stage, shards)
    assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
    model = detached(net.state_dict())
    net.load_state_dict({**model, **stage.combine(updates, model).weights})
    return net


def test_five_clients_of_two_blobs_each_find_all_ten_in_one_round():
    points, labels = _blobs()
    net = _fit(KFed(local=2), points.split(80), 10)
    assert accuracy(labels, net.online.assign(points).argmax(dim=1).numpy()) == 1.0
    shares = net.state_dict()[f"{HEAD}.marginal"]
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=1e-6, rtol=0)


def test_rows_are_clearly_nearest_if_three_times_as_far_from_every_other_centre():
    rows, centres = DRAW.normal(size=(50, 3)), DRAW.normal(size=(4, 3))
    found = clearly_nearest(rows, centres)
    for i, row in enumerate(rows):
        to = [np.linalg.norm(row - centre) for centre in centres]
        for r in range(4):
            assert found[i, r] == all(to[r] <= to[s] / 3 for s in range(4) if s != r)
    assert found.any()
    assert clearly_nearest(rows, centres[:1]).all()


def test_the_server_adds_the_row_that_is_farthest_from_all_chosen():
    rows = DRAW.normal(size=(12, 2))
    chosen = list(rows[:2])
    while len(chosen) < 5:
        gaps = [min(np.linalg.norm(row - centre) for centre in chosen) for row in rows]
        chosen.append(rows[int(np.argmax(gaps))])
    np.testing.assert_allclose(farthest(rows[:2], rows, 5), chosen)


def test_a_cluster_is_the_mean_of_its_centres_however_many_images_they_represent():
    net, (stage,) = _net(KFed(), 1, 2), KFed().stages()
    shared, sizes = detached(net.state_dict()), [[10, 990], [500, 500]]
    rows = [[[0.0], [8.0]], [[2.0], [10.0]]]
    updates = [
        Update(k, stage.name, 1, 1000, None, shared, {"centroids": torch.tensor(r), "sizes": torch.tensor(s)})
        for k, (r, s) in enumerate(zip(rows, sizes, strict=True))
    ]
    combined = stage.combine(updates, shared).weights
    assert combined[f"{HEAD}.vectors.weight"].flatten().tolist() == [1.0, 9.0]
    torch.testing.assert_close(combined[f"{HEAD}.marginal"], torch.tensor([0.255, 0.745]))


def test_equal_images_give_finite_centres():
    net = _fit(KFed(smallest=1), [torch.ones(5, 3), torch.ones(4, 3)], 3)
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())


def test_centres_outside_the_range_of_features_and_too_many_are_refused():
    net, (stage,) = _net(KFed(local=2), 6, 10), KFed(local=2).stages()
    (update,) = _updates(net, stage, [_blobs()[0]])
    far = {**update.extras, "centroids": update.extras["centroids"] + 10 * MAX_FEATURE}
    assert "outside the range of features" in stage.extras_error(replace(update, extras=far))
    more = {"centroids": torch.zeros(3, 6), "sizes": torch.tensor([100, 100, 200])}
    refused = stage.extras_error(replace(update, extras=more))
    assert refused == "It has 3 centroids; at most 2 are allowed."


def test_a_negative_number_of_local_clusters_is_refused():
    with pytest.raises(InputError, match=r"clustering\.local is -1"):
        KFed(local=-1)
