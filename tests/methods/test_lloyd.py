"""Exact federated k-means: Lloyd's algorithm on the pooled features, whatever the partition."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.lloyd import Lloyd, LloydKMeans, Seeds
from fedmcc.networks.centres import Centres, squared_distances
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import detached, select

BLOBS = 4


def _points(n=200, spread=1.0, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % BLOBS
    centres = 4 * draw.normal(size=(BLOBS, 5))
    points = centres[labels] + spread * draw.normal(size=(n, 5))
    return torch.from_numpy(points).float(), labels


def _net(unit=False):
    net = Network(Branch(nn.Flatten()))
    LloydKMeans(unit=unit).extend(net, 5, BLOBS)
    return net


def _updates(net, stage, shards):
    shared = detached(select(net.state_dict(), stage.shared))
    updates = [
        Update(client, stage.name, 1, len(points), None, shared, stage.extras(net, points.split(16)))
        for client, points in enumerate(shards)
    ]
    assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
    return updates


def _exchange(net, stages, shards):
    for stage in stages:
        for _ in range(stage.rounds):
            model = detached(net.state_dict())
            combined = stage.combine(_updates(net, stage, shards), model)
            net.load_state_dict({**model, **combined.weights})
    return net.online.cluster_projector


def _inertia(net, points):
    return squared_distances(points, net.online.cluster_projector.vectors.weight).amin(dim=1).sum().item()


def test_assignments_are_the_student_t_of_a_slow_loop():
    head, points = Centres(3, 4, alpha=2.0), torch.randn(6, 3)
    found = head(points)
    for i, point in enumerate(points):
        values = [(1 + (point - c).square().sum() / 2) ** -1.5 for c in head.vectors.weight]
        for k, value in enumerate(values):
            assert found[i, k].item() == pytest.approx((value / sum(values)).item(), rel=1e-5)


def test_one_round_from_given_centres_is_one_step_of_scikit_learn():
    points, _ = _points()
    net = _net()
    start = points[:BLOBS].clone()
    net.online.cluster_projector.vectors.weight.data.copy_(start)
    head = _exchange(net, [Lloyd(rounds=100, smallest=1)], [points])
    expected = KMeans(BLOBS, init=start.numpy(), n_init=1, tol=0).fit(points.numpy())
    np.testing.assert_allclose(head.vectors.weight.detach(), expected.cluster_centers_, rtol=1e-4, atol=1e-5)
    assert np.array_equal(head(points).argmax(dim=1), expected.labels_)


@pytest.mark.parametrize("unit", [False, True])
def test_five_clients_of_any_partition_equal_one(unit):
    points, _ = _points()
    start, results = torch.randn(BLOBS, 5), []
    by_axis = points[points[:, 0].argsort()]
    for shards in ([points], points.split([3, 50, 97, 10, 40]), by_axis.split(40)):
        net = _net(unit)
        net.online.cluster_projector.vectors.weight.data.copy_(start)
        results.append(_exchange(net, [Lloyd(rounds=5, smallest=1)], shards).state_dict())
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-7)


def test_the_sum_of_squared_distances_never_rises():
    points, _ = _points(spread=3.0)
    net = _net()
    net.online.cluster_projector.vectors.weight.data.copy_(points[:BLOBS])
    inertias = [_inertia(net, points)]
    for _ in range(8):
        _exchange(net, [Lloyd(rounds=1, smallest=1)], points.split(50))
        inertias.append(_inertia(net, points))
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in pairwise(inertias))
    assert inertias[-1] < 0.9 * inertias[0]


def test_with_excess_1_a_single_client_starts_where_k_means_ends():
    points, _ = _points()
    head = _exchange(_net(), LloydKMeans(excess=1.0, smallest=1).stages(), [points])
    best = KMeans(BLOBS, n_init=20, random_state=1).fit(points.numpy())
    found = squared_distances(points, head.vectors.weight).amin(dim=1).sum().item()
    assert found == pytest.approx(best.inertia_, rel=1e-4)


def test_blobs_are_found_though_each_client_has_one():
    points, labels = _points(spread=0.5)
    shards = [points[labels == blob] for blob in range(BLOBS)]
    head = _exchange(_net(), LloydKMeans().stages(), shards)
    assert accuracy(labels, head(points).argmax(dim=1).numpy()) == 1.0
    torch.testing.assert_close(head.marginal, torch.full((BLOBS,), 0.25))


def test_unit_clusters_directions_and_not_lengths():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % BLOBS
    points = F.pad(torch.eye(BLOBS), (0, 1))[labels] + 0.05 * torch.randn(80, 5, generator=draw)
    points *= torch.rand(80, 1, generator=draw) * 10 + 0.1
    head = _exchange(_net(unit=True), LloydKMeans(unit=True, smallest=1).stages(), points.split(20))
    assert accuracy(labels.numpy(), head(points).argmax(dim=1).numpy()) == 1.0


def test_a_centre_without_images_stays():
    points, _ = _points()
    net = _net()
    far = torch.full((5,), 1e3)
    net.online.cluster_projector.vectors.weight.data.copy_(torch.cat([points[: BLOBS - 1], far[None]]))
    head = _exchange(net, [Lloyd(rounds=2, smallest=1)], [points])
    assert torch.equal(head.vectors.weight[-1], far)
    assert head.marginal[-1] == 0


def test_fewer_images_than_centres_repeat_centres():
    head = _exchange(_net(), [Seeds(smallest=1)], [torch.tensor([[1.0] * 5]), torch.tensor([[2.0] * 5])])
    assert sorted(head.vectors.weight[:, 0].tolist()) == [1, 1, 2, 2]


def test_no_centroid_of_fewer_images_than_smallest_is_sent():
    points, _ = _points(n=40)
    net = _net()
    sizes = Seeds(excess=5.0, smallest=4).extras(net, [points])["sizes"]
    assert sizes.min() >= 4
    assert sizes.sum() == 40
    assert Seeds(excess=5.0, smallest=1).extras(net, [points])["sizes"].min() < 4


def test_no_sum_of_fewer_images_than_smallest_is_sent():
    points, _ = _points()
    net = _net()
    lonely = torch.full((1, 5), 1e3)  # nearest to a centre of its own
    net.online.cluster_projector.vectors.weight.data.copy_(torch.cat([points[: BLOBS - 1], lonely]))
    shard = [torch.cat([points, lonely])]
    for smallest, count in ((1, 1), (2, 0)):
        (update,) = _updates(net, Lloyd(rounds=1, smallest=smallest), shard)
        assert update.extras["counts"][-1] == count
        assert update.extras["sums"][-1].any() == bool(count)


@pytest.mark.parametrize(
    ("key", "change", "sentence"),
    [
        ("counts", lambda counts: counts + 1, "do not sum"),
        ("counts", lambda counts: counts + torch.tensor([-1000, 1000, 0, 0]), "do not sum"),
    ],
)
def test_impossible_counts_are_refused(key, change, sentence):
    points, _ = _points()
    net, stage = _net(), Lloyd(rounds=1, smallest=1)
    (update,) = _updates(net, stage, [points])
    refused = replace(update, extras={**update.extras, key: change(update.extras[key])})
    assert sentence in stage.extras_error(refused)


def test_a_sum_without_images_is_refused():
    net, stage = _net(), Lloyd(rounds=1, smallest=1)
    (update,) = _updates(net, stage, [_points()[0]])
    counts = torch.tensor([0, 0, 0, update.samples])
    sums = torch.ones_like(update.extras["sums"])
    refused = replace(update, extras={"sums": sums, "counts": counts})
    assert stage.extras_error(refused) == "It has a sum for a cluster without images."


def test_unit_centroids_outside_the_sphere_are_refused():
    net, stage = _net(unit=True), Seeds(unit=True)
    (update,) = _updates(net, stage, [_points()[0]])
    extras = {**update.extras, "centroids": 2 * F.normalize(update.extras["centroids"], dim=1)}
    assert stage.extras_error(replace(update, extras=extras)) == "Its centroids lie outside the unit sphere."


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("excess", 0.0), ("smallest", 0)])
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"clustering\.{field} is 0"):
        LloydKMeans(**{field: value})


def test_by_default_a_centroid_and_a_sum_represent_at_least_ten_images():
    assert {stage.smallest for stage in LloydKMeans().stages()} == {10}
    points, _ = _points()
    net, stage = _net(), Lloyd(rounds=1)
    (update,) = _updates(net, stage, [points])
    counts = torch.tensor([9, update.samples - 9, 0, 0])
    sums = torch.zeros_like(update.extras["sums"])
    refused = stage.extras_error(replace(update, extras={"sums": sums, "counts": counts}))
    assert refused == "A sum represents fewer images than 10, the smallest number."


@pytest.mark.parametrize(
    ("unit", "factor", "valid"),
    [(True, 1.0, True), (True, 1.1, False), (False, 1e4, True), (False, 1e6, False)],
)
def test_sums_longer_than_those_of_any_images_are_refused(unit, factor, valid):
    net, stage = _net(unit), Lloyd(rounds=1, unit=unit)
    (update,) = _updates(net, stage, [_points()[0]])
    counts = torch.tensor([update.samples, 0, 0, 0])
    sums = torch.zeros_like(update.extras["sums"])
    sums[0, 0] = factor * update.samples
    error = stage.extras_error(replace(update, extras={"sums": sums, "counts": counts}))
    assert error == ("" if valid else "Its sums are longer than those of its images can be.")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c, s: (c * 1e6, s), "Its centroids lie outside the range of features."),
        (lambda c, s: (c * torch.nan, s), "Its centroids lie outside the range of features."),
        (lambda c, s: (c[:1].repeat(9, 1), s[:1].repeat(9)), "It has 9 centroids; at most 8 are allowed."),
        (lambda c, s: (c[:2], torch.tensor([1, 199])), "Its centroids represent fewer images than 10"),
    ],
)
def test_first_centroids_that_no_images_give_are_refused(change, sentence):
    net, stage = _net(), Seeds()
    (update,) = _updates(net, stage, [_points()[0]])
    centroids, sizes = change(update.extras["centroids"], update.extras["sizes"])
    extras = {"centroids": centroids, "sizes": sizes}
    assert stage.extras_error(replace(update, extras=extras)).startswith(sentence)
