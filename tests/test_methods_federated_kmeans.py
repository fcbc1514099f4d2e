"""Federated k-means on features whose clusters are known."""

import numpy as np
import torch
from torch import nn

from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.federated_kmeans import HEAD, FederatedKMeans
from fedmcc.networks.momentum import Branch, Network


def _network(clusters, features):
    net = Network(Branch(nn.Flatten()))
    FederatedKMeans().extend(net, features, clusters)
    return net


def _blobs(labels, features=12):
    """Points near one direction per label."""
    draw = torch.Generator().manual_seed(int(labels[0]))
    points = torch.eye(features)[labels] + 0.1 * torch.randn(len(labels), features, generator=draw)
    return points.view(len(labels), 1, 1, features)


def _exchange(shards, clusters=10):
    """One round: what clients send, what the server makes of it, put into the network."""
    net, (stage,) = _network(clusters, 12), FederatedKMeans().stages()
    head = {name: value for name, value in net.state_dict().items() if name.startswith(HEAD)}
    updates = [
        Update(client, stage.name, 1, len(labels), None, head, stage.extras(net, [_blobs(labels)]))
        for client, labels in enumerate(shards)
    ]
    net.load_state_dict({**net.state_dict(), **stage.combine(updates).weights})
    return net, updates


def test_clients_of_two_classes_each_find_all_ten_together():
    shards = [np.repeat([2 * client, 2 * client + 1], 90) for client in range(5)]
    net, _ = _exchange(shards)
    labels = np.concatenate(shards)
    points = torch.cat([_blobs(shard) for shard in shards])
    assigned = net.online.assign(net.online.encoder(points)).argmax(dim=1).numpy()
    assert accuracy(labels, assigned) == 1.0


def test_only_centroids_and_counts_leave_a_client():
    _, updates = _exchange([np.repeat([0, 1], 90), np.repeat([2, 3], 30)], clusters=4)
    assert set(updates[0].extras) == {"centroids", "sizes"}
    assert updates[0].extras["centroids"].shape == (6, 12)  # 180 images, 30 for each centroid
    assert updates[1].extras["centroids"].shape == (2, 12)
    assert updates[0].extras["sizes"].sum() == 180


def test_the_head_knows_the_shares_of_all_clusters():
    net, _ = _exchange([np.repeat([0], 300), np.repeat([1], 100)], clusters=2)
    head = net.online.cluster_projector
    assert sorted(head.marginal.tolist()) == [0.25, 0.75]
    assert int(head.samples) == 400


def test_a_tiny_client_sends_one_centroid():
    _, updates = _exchange([np.array([0, 0, 0]), np.repeat([1, 2], 90)], clusters=2)
    assert len(updates[0].extras["sizes"]) == 1
