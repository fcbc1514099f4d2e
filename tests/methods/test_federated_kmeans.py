"""Federated k-means on features whose clusters are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD, local_centroids
from fedmcc.methods.distinct_images import DistinctPoints
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.whitening import Whitening
from fedmcc.networks.momentum import Branch, MomentumPair, Network
from fedmcc.numerics.state_dicts import select


def _blobs(labels, features=12):
    """Points near one direction per label."""
    draw = torch.Generator().manual_seed(int(labels[0]))
    points = torch.eye(features)[labels] + 0.1 * torch.randn(len(labels), features, generator=draw)
    return points.view(len(labels), 1, 1, features)


def _exchange(shards, clusters=10, **options):
    """Run all rounds and load the server's results into the network."""
    net, method = Network(Branch(nn.Flatten())), FederatedKMeans(**options)
    method.extend(net, 12, clusters)
    for stage in method.stages():
        shared = select(net.state_dict(), stage.shared)
        updates = [
            Update(client, stage.name, 1, len(labels), None, shared, stage.extras(net, [_blobs(labels)]))
            for client, labels in enumerate(shards)
        ]
        assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
        net.load_state_dict({**net.state_dict(), **stage.combine(updates, net.state_dict()).weights})
    return net, updates


@pytest.mark.parametrize("axes", [0.0, 1.0, 2.0])
def test_clients_of_two_classes_each_find_all_ten_together(axes):
    shards = [np.repeat([2 * client, 2 * client + 1], 90) for client in range(5)]
    net, _ = _exchange(shards, axes=axes)
    points = torch.cat([_blobs(shard) for shard in shards])
    assigned = net.online.assign(net.online.encoder(points)).argmax(dim=1).numpy()
    assert accuracy(np.concatenate(shards), assigned) == 1.0


def test_whitened_features_of_all_clients_have_mean_0_and_variance_1_on_every_axis():
    shards = [np.repeat([0, 1], 90), np.repeat([2, 3, 4], 40)]
    net, _ = _exchange(shards, clusters=2)
    whitening = net.online.cluster_projector.whitening
    points = torch.cat([_blobs(shard).flatten(1) for shard in shards])
    unit = (points / points.norm(dim=1, keepdim=True)).double()
    placed = ((unit - whitening.mean.double()) @ whitening.axes.double().T).numpy()
    np.testing.assert_allclose(placed.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.cov(placed.T, bias=True), np.eye(4), atol=1e-4)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_axes_beyond_a_share_of_the_variance_are_left_out(share):
    net, method = Network(Branch(nn.Flatten())), FederatedKMeans()
    method.extend(net, 12, 2)
    shards = [_blobs(labels).flatten(1) for labels in (np.repeat([0, 1], 90), np.repeat([2, 3, 4], 40))]
    stage, points = Whitening(variance=share), torch.cat(shards)
    axes = stage.combine(_moments_of(stage, net, shards), net.state_dict()).weights[f"{HEAD}.whitening.axes"]
    unit = (points / points.norm(dim=1, keepdim=True)).double().numpy()
    largest = np.sort(np.linalg.eigvalsh(np.cov(unit.T, bias=True)))[::-1]
    needed = next(count for count in range(1, 13) if largest[:count].sum() >= share * largest.sum())
    placed = unit @ axes.double().numpy().T
    np.testing.assert_allclose(placed.var(axis=0), (np.arange(4) < needed).astype(float), atol=1e-4)


@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_without_whitening_the_principal_axes_keep_their_variances(whiten):
    shards = [np.repeat([0, 1], 90), np.repeat([2, 3, 4], 40)]
    net, _ = _exchange(shards, clusters=2, whiten=whiten)
    points = torch.cat([_blobs(shard).flatten(1) for shard in shards])
    unit = (points / points.norm(dim=1, keepdim=True)).double().numpy()
    placed = unit @ net.online.cluster_projector.whitening.axes.double().numpy().T
    largest = np.sort(np.linalg.eigvalsh(np.cov(unit.T, bias=True)))[::-1][:4]
    np.testing.assert_allclose(placed.var(axis=0), largest ** (1 - whiten), rtol=1e-4)


def _moments_of(stage, net, shards):
    shared = select(net.state_dict(), stage.shared)
    return [
        Update(client, "whitening", 1, len(shard), None, shared, stage.extras(net, shard.split(50)))
        for client, shard in enumerate(shards)
    ]


def test_of_many_features_clients_send_the_largest_axes_which_whiten_as_well():
    """The points vary along 5 directions and a client sends 8 axes, so that nothing is lost."""
    draw = torch.Generator().manual_seed(0)
    directions = torch.randn(5, 600, generator=draw)
    shards = [
        torch.randn(count, 5, generator=draw) @ directions + client for client, count in enumerate((70, 40))
    ]
    net, method = Network(Branch(nn.Flatten())), FederatedKMeans()
    method.extend(net, 600, 2)
    whitening, _ = method.stages()
    updates = _moments_of(whitening, net, shards)
    assert [whitening.extras_error(update) for update in updates] == ["", ""]
    assert {name: tuple(value.shape) for name, value in updates[0].extras.items()} == {
        "first": (600,),
        "factor": (8, 600),
        "count": (),
    }
    axes = whitening.combine(updates, net.state_dict()).weights["online.cluster_projector.whitening.axes"]
    unit = torch.cat(shards).double()
    unit = (unit / unit.norm(dim=1, keepdim=True)).numpy()
    placed = (unit - unit.mean(axis=0)) @ axes.double().numpy().T
    np.testing.assert_allclose(np.cov(placed.T, bias=True), np.eye(4), atol=1e-4)
    variance = np.sort(np.linalg.eigvalsh(np.cov(unit.T, bias=True)))[-4:]
    np.testing.assert_allclose(np.sort(1 / np.square(axes.norm(dim=1).numpy())), variance, rtol=1e-3)


@pytest.mark.parametrize("factor", [1.2, torch.nan])
def test_axes_longer_than_those_of_unit_vectors_are_refused(factor):
    net, method = Network(Branch(nn.Flatten())), FederatedKMeans()
    method.extend(net, 600, 2)
    whitening, _ = method.stages()
    (update,) = _moments_of(
        whitening, net, [torch.randn(40, 600, generator=torch.Generator().manual_seed(0))]
    )
    changed = replace(update, extras={**update.extras, "factor": 2 * factor * update.extras["factor"]})
    assert whitening.extras_error(changed) == "Its moments are not those of one unit vector per image."


def test_only_centroids_and_counts_leave_a_client():
    _, updates = _exchange([np.repeat([0, 1], 90), np.repeat([2, 3], 30)], clusters=4)
    assert set(updates[0].extras) == {"centroids", "sizes"}
    assert updates[0].extras["centroids"].shape == (
        6,
        8,
    )  # 180 images, 30 for each centroid; 2 axes a cluster
    assert updates[1].extras["centroids"].shape == (4, 8)  # 60 images, but not fewer than clusters
    assert updates[0].extras["sizes"].sum() == 180


def _distance_to_an_image(updates, labels):
    images = torch.nn.functional.normalize(_blobs(labels).flatten(1), dim=1)
    return torch.cdist(updates[0].extras["centroids"].double(), images.double()).min(dim=1).values


@pytest.mark.parametrize(("options", "revealed"), [({"smallest": 1}, True), ({}, False)])
def test_by_default_no_centroid_is_the_features_of_an_image(options, revealed):
    labels = np.minimum(np.arange(20), 9)  # nine images are alone in their cluster
    _, updates = _exchange([labels], axes=0.0, **options)
    assert bool((_distance_to_an_image(updates, labels) < 1e-6).any()) == revealed
    assert (int(updates[0].extras["sizes"].min()) < 10) == revealed


def test_copies_of_an_image_do_not_make_a_centroid():
    images = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    found = DistinctPoints(images, np.where(np.arange(20) == 3, 1_000, 10))
    centres, sizes = local_centroids(found, 20, seed=0, smallest=10)
    # One centroid of all images: of two, one would have fewer than ten. Copies do not count in its mean.
    np.testing.assert_allclose(centres, images.mean(axis=0, keepdims=True), atol=1e-6)
    assert sizes.tolist() == [1_190]


def test_too_few_centroids_for_the_clusters_are_reported(caplog):
    _exchange([np.arange(12), np.arange(12)], clusters=5, axes=0.0)
    assert "sent 2 centroids for 5 clusters" in caplog.text


def test_the_head_stores_the_shares_of_all_clusters():
    net, _ = _exchange([np.repeat([0], 300), np.repeat([1], 100)], clusters=2, axes=0.0)
    head = net.online.cluster_projector
    assert sorted(head.marginal.tolist()) == [0.25, 0.75]


BAD = {
    "Its extra tensors are centroids; expected centroids, sizes.": {"sizes": None},
    "The sizes of its centroids do not sum to its number of images.": {
        "sizes": torch.ones(6, dtype=torch.int64)
    },
    "Its centroids lie outside the unit sphere.": {"centroids": torch.full((6, 8), 2.0)},
    "Its centroids is torch.float32 of shape (6, 3); expected torch.float32 of (None, 8).": {
        "centroids": torch.ones(6, 3)
    },
}


@pytest.mark.parametrize("reason", BAD)
def test_impossible_centroids_are_refused(reason):
    _, (update, _) = _exchange([np.repeat([0, 1], 90), np.repeat([2, 3], 30)], clusters=4)
    extras = {name: value for name, value in {**update.extras, **BAD[reason]}.items() if value is not None}
    assert FederatedKMeans().stages()[-1].extras_error(replace(update, extras=extras)) == reason


@pytest.mark.parametrize(
    "change",
    [{"count": torch.tensor(1.0, dtype=torch.float64)}, {"second": 1e6 * torch.eye(12, dtype=torch.float64)}],
)
def test_impossible_moments_are_refused(change):
    net, method = Network(Branch(nn.Flatten())), FederatedKMeans()
    method.extend(net, 12, 4)
    stage, labels = method.stages()[0], np.repeat([0, 1], 90)
    extras = {**stage.extras(net, [_blobs(labels)]), **change}
    update = Update(0, stage.name, 1, 180, None, select(net.state_dict(), stage.shared), extras)
    assert stage.extras_error(update) == "Its moments are not those of one unit vector per image."


def test_with_fewer_centroids_than_clusters_prototypes_repeat():
    net, _ = _exchange([np.repeat([0], 3)], clusters=5, axes=0.0, smallest=1)
    vectors = net.online.cluster_projector.vectors.weight
    torch.testing.assert_close(vectors[3:], vectors[:2])


def test_a_target_gets_a_head_of_its_own():
    pair = MomentumPair(Branch(nn.Flatten()))
    FederatedKMeans().extend(pair, 12, 3)
    pair.reset_target()
    assert pair.target.cluster_projector is not pair.online.cluster_projector
    assert not any(parameter.requires_grad for parameter in pair.target.parameters())


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"images_per_centroid": 0}, {"axes": -1.0}, {"whiten": 1.1}]
)
def test_invalid_options_are_refused(options):
    with pytest.raises(InputError, match=f"clustering.{next(iter(options))}"):
        FederatedKMeans(**options)
