"""Spectral clustering by landmarks: shapes that k-means cannot separate, and the dense cut as a limit."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.centroids import VECTORS
from fedmcc.methods.landmarks import GROUPS, WIDTH, Cut, LandmarkSpectral, Width
from fedmcc.methods.lloyd import LloydKMeans
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.normalized_cut import cut
from fedmcc.numerics.state_dicts import detached, select


def _rings(n=400):
    """Two concentric rings: the outer one surrounds the inner one."""
    draw, labels = np.random.default_rng(0), np.arange(n) % 2
    angle, radius = draw.uniform(0, 2 * np.pi, n), np.where(labels == 0, 1.0, 3.0) + draw.normal(0, 0.1, n)
    return torch.from_numpy(
        np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    ).float(), labels


def _exchange(method, shards, stages=None, clusters=2, net=None):
    if net is None:
        net = Network(Branch(nn.Flatten()))
        method.extend(net, 2, clusters)
    for stage in stages or method.stages():
        for _ in range(stage.rounds):
            model = detached(net.state_dict())
            shared = select(model, stage.shared)
            updates = [
                Update(client, stage.name, 1, len(points), None, shared, stage.extras(net, points.split(64)))
                for client, points in enumerate(shards)
            ]
            assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
            net.load_state_dict({**model, **stage.combine(updates, model).weights})
    return net


def _accuracy(net, points, labels):
    return accuracy(labels, net.online.assign(points).argmax(dim=1).numpy())


def test_rings_are_separated_which_k_means_cannot():
    points, labels = _rings()
    assert _accuracy(_exchange(LandmarkSpectral(smallest=1, landmarks=20.0), [points]), points, labels) == 1.0
    assert _accuracy(_exchange(LloydKMeans(), [points]), points, labels) < 0.8


def test_clients_with_one_ring_each_find_both():
    points, labels = _rings()
    shards = [points[labels == 0], points[labels == 1]]
    assert _accuracy(_exchange(LandmarkSpectral(smallest=1, landmarks=20.0), shards), points, labels) == 1.0


def test_given_the_landmarks_the_partition_does_not_matter():
    points, _ = _rings(120)
    method, results = LandmarkSpectral(smallest=1, landmarks=10.0), []
    first = detached(_exchange(method, [points], method.stages()[:1]).state_dict())
    for shards in ([points], points.split([7, 53, 60])):
        net = Network(Branch(nn.Flatten()))
        method.extend(net, 2, 2)
        net.load_state_dict(first)
        results.append(_exchange(method, shards, method.stages()[1:], net=net).state_dict())
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-6, atol=1e-7)


def test_weights_of_the_nearest_landmarks_against_a_loop():
    method = LandmarkSpectral(smallest=1, landmarks=5.0, neighbours=3)
    points, _ = _rings(50)
    head = _exchange(method, [points]).online.cluster_projector
    found, vectors = head.weights(points).detach(), head.vectors.weight.detach()
    distances = torch.cdist(points.double(), vectors.double())
    width = float(distances.sort(dim=1).values[:, 2].mean())
    assert float(head.width) == pytest.approx(width, rel=1e-5)
    for row, weights in zip(distances, found, strict=True):
        nearest = row.argsort()[:3]
        values = {int(j): np.exp(-(float(row[j]) ** 2) / (2 * width**2)) for j in nearest}
        for j, weight in enumerate(weights):
            assert float(weight) == pytest.approx(values.get(j, 0.0) / sum(values.values()), rel=1e-4)


def test_with_every_image_a_landmark_it_is_the_dense_normalised_cut():
    points, _ = _rings(60)
    net = Network(Branch(nn.Flatten()))
    method = LandmarkSpectral(smallest=1, landmarks=30.0, neighbours=60)
    method.extend(net, 2, 2)
    state = net.state_dict()
    state[VECTORS].copy_(points)
    state[WIDTH].fill_(0.3)
    weights = torch.softmax(-(torch.cdist(points.double(), points.double()) ** 2) / (2 * 0.3**2), dim=1)
    expected = cut((weights.T @ weights).numpy(), 2, balance=0.0)
    groups = _exchange(method, [points], [Cut()], net=net).state_dict()[GROUPS].argmax(dim=1).numpy()
    assert accuracy(expected, groups) == 1.0


def test_more_landmarks_than_images_are_copies_in_one_cluster_each():
    points, labels = _rings(20)
    net = _exchange(LandmarkSpectral(smallest=1, landmarks=30.0), [points])
    state = net.state_dict()
    nodes = torch.unique(state[VECTORS], dim=0, return_inverse=True)[1]
    for node in range(int(nodes.max()) + 1):
        assert len(torch.unique(state[GROUPS][nodes == node], dim=0)) == 1
    assert torch.isfinite(net.online.assign(points)).all()
    assert len(labels) == 20


def test_a_negative_sum_of_distances_is_refused():
    net = _exchange(LandmarkSpectral(smallest=1, landmarks=5.0), [_rings(40)[0]])
    shared = select(detached(net.state_dict()), Width().shared)
    extras = {"distances": torch.tensor(-1.0, dtype=torch.float64)}
    update = Update(0, "width", 1, 40, None, shared, extras)
    assert Width().extras_error(update) == "Its sum of distances is negative."
    far = {"distances": torch.tensor(1e9, dtype=torch.float64)}
    update = Update(0, "width", 1, 40, None, shared, far)
    assert Width().extras_error(update) == "Its sum of distances is larger than its images can have."


@pytest.mark.parametrize(
    ("field", "value"), [("landmarks", 0.0), ("neighbours", 0), ("excess", 0.0), ("smallest", 0)]
)
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"clustering\.{field} is 0"):
        LandmarkSpectral(**{field: value})
