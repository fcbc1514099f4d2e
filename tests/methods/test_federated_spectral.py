"""Federated spectral clustering on shapes that k-means cannot separate."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods import federated_spectral
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.federated_spectral import FederatedSpectral
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.matrices import upper_triangle
from fedmcc.numerics.state_dicts import detached, select


def _arcs(labels, seed):
    """Two long arcs on the sphere, one above the other: each end is closer to the other arc."""
    draw = np.random.default_rng(seed)
    angle = draw.uniform(0, 4.5, len(labels))
    height = np.where(labels == 0, 0.35, -0.35) + draw.normal(0, 0.03, len(labels))
    points = np.stack([np.cos(angle), np.sin(angle), height], axis=1)
    return torch.from_numpy(points).float()


def _exchange(method, shards, clusters=2):
    net = Network(Branch(nn.Flatten()))
    method.extend(net, 3, clusters)
    for stage in method.stages():
        model = detached(net.state_dict())
        shared = select(model, stage.shared)
        updates = [
            Update(client, stage.name, 1, len(points), None, shared, stage.extras(net, [points]))
            for client, points in enumerate(shards)
        ]
        assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
        net.load_state_dict({**model, **stage.combine(updates, model).weights})
    return net, updates


def _labels(client):
    return np.repeat([0, 1], 150) if client < 2 else np.repeat([client % 2], 200)


SHARDS = [(labels, _arcs(labels, client)) for client in range(4) for labels in [_labels(client)]]
ARCS = {"axes": 0.0, "temperature": 0.02}


def _accuracy(method):
    net, _ = _exchange(method, [points for _, points in SHARDS])
    points = torch.cat([points for _, points in SHARDS])
    assigned = net.online.assign(net.online.encoder(points)).argmax(dim=1).numpy()
    return accuracy(np.concatenate([labels for labels, _ in SHARDS]), assigned)


def test_arcs_are_separated_by_merged_prototypes_and_not_by_one_each():
    assert _accuracy(FederatedSpectral(prototypes=20.0, **ARCS)) > 0.98
    assert _accuracy(FederatedKMeans(**ARCS)) < 0.8


def test_arcs_of_uneven_sizes_are_separated_too():
    labels = [np.repeat([0, 1], [800, 80]) for _ in range(2)]
    shards = [_arcs(own, client) for client, own in enumerate(labels)]
    net, _ = _exchange(FederatedSpectral(prototypes=20.0, **ARCS), shards)
    assigned = net.online.assign(net.online.encoder(torch.cat(shards))).argmax(dim=1).numpy()
    assert accuracy(np.concatenate(labels), assigned) > 0.98


def test_a_client_sends_the_sum_of_outer_products_of_its_soft_assignments():
    method = FederatedSpectral(members=2, neighbours=0, **ARCS)
    net, updates = _exchange(method, [points for _, points in SHARDS])
    p = _soft_assignments(net.online.cluster_projector, SHARDS[0][1], 0.02)
    expected = sum(np.outer(row, row) for row in p)[np.triu_indices(40)]
    np.testing.assert_allclose(updates[0].extras["affinity"], expected, atol=1e-4)
    assert updates[0].extras["affinity"].shape == (40 * 41 / 2,)  # for any number of images


def test_an_image_shares_the_prototypes_of_its_nearest_neighbours_at_its_client():
    method = FederatedSpectral(members=2, neighbours=3, **ARCS)
    net, updates = _exchange(method, [points for _, points in SHARDS])
    own = SHARDS[0][1].double().numpy()
    p = _soft_assignments(net.online.cluster_projector, SHARDS[0][1], 0.02 / 2)  # of half the temperature
    directions = own / np.linalg.norm(own, axis=1, keepdims=True)
    means = [p[np.argsort(-(directions @ row))[:4]].mean(axis=0) for row in directions]  # the image is first
    expected = sum(np.outer(row, row) for row in means)[np.triu_indices(40)]
    np.testing.assert_allclose(updates[0].extras["affinity"], expected, atol=1e-3)


def _soft_assignments(head, points, temperature):
    cosine = nn.functional.normalize(points, dim=1) @ nn.functional.normalize(head.vectors.weight, dim=1).T
    shares = [(cosine[:, rows] / temperature).softmax(dim=1) / 2 for rows in (slice(20), slice(20, 40))]
    return torch.cat(shares, dim=1).double().detach().numpy()


@pytest.mark.parametrize(
    ("images", "used", "expected"), [(20, 50, 1), (100, 50, 4), (100, 10, 10), (40, 10, 8)]
)
def test_neighbourhoods_are_a_fifth_of_a_cluster_at_most(images, used, expected):
    """A client that uses ten of fifty prototypes holds about one of five clusters."""
    merging, p = FederatedSpectral().stages()[-1], torch.zeros(images, 50)
    p[:, :used] = 1 / used
    assert merging.neighbourhood(p, clusters=5) == expected


def test_affinities_of_many_images_are_those_of_a_sample_of_all_kinds_even_if_files_alternate(monkeypatch):
    labels = np.arange(600) % 2
    points = _arcs(labels, 0)
    net, _ = _exchange(FederatedSpectral(prototypes=20.0, **ARCS), [points])
    monkeypatch.setattr(federated_spectral, "MAX_IMAGES", 300)
    sampled, _ = _exchange(FederatedSpectral(prototypes=20.0, **ARCS), [points])
    for each in (net, sampled):
        assert each.online.cluster_projector.marginal.numpy() == pytest.approx(0.5, abs=0.1)
    assigned = sampled.online.assign(sampled.online.encoder(points)).argmax(dim=1).numpy()
    assert accuracy(labels, assigned) > 0.98


def test_a_sample_has_as_many_images_as_it_may_have():
    for count in (19_999, 20_000, 20_001, 60_000):
        rows = torch.arange(count)[federated_spectral.sampled_rows(count)]
        assert len(rows.unique()) == len(rows) == min(count, 20_000)
    assert len(rows[rows % 2 == 0]) == pytest.approx(10_000, abs=300)  # four standard deviations of a draw


def test_an_image_that_is_stored_three_times_counts_three_times_and_is_not_its_own_neighbour():
    method, points = FederatedSpectral(members=2, neighbours=3, **ARCS), SHARDS[0][1]
    net, _ = _exchange(method, [points])
    once = method.stages()[-1].extras(net, [points])["affinity"]
    net.copy_of = torch.arange(len(points)).repeat(3)
    copied = method.stages()[-1].extras(net, points.repeat(3, 1).split(7))["affinity"]
    torch.testing.assert_close(copied, 3 * once)


@pytest.mark.parametrize(("clusters", "most"), [(10, 1_400), (100, 1_400), (200, 2_000)])
def test_the_prototypes_of_all_members_are_bounded_and_each_cluster_has_one_of_each_member(clusters, most):
    members = FederatedSpectral(prototypes=100.0, members=7).head_members(512, clusters)
    assert len(members) == 7
    assert sum(member.count for member in members) <= max(most, 100 * clusters) + 7  # rounded
    default = FederatedSpectral().head_members(512, clusters)
    assert sum(member.count for member in default) <= max(1_000, 10 * clusters) + 5  # rounded
    assert all(member.count >= clusters for member in (*members, *default))


def test_of_many_images_ten_clusters_have_all_prototypes_that_the_members_want():
    members = FederatedSpectral(prototypes=20.0).head_members(512, 10)
    assert [member.count for member in members] == [200, 200, 400, 400, 200]


def test_the_head_stores_the_share_of_images_in_each_cluster():
    net, _ = _exchange(FederatedSpectral(prototypes=20.0, **ARCS), [points for _, points in SHARDS])
    points = torch.cat([points for _, points in SHARDS])
    mean = net.online.assign(points).mean(dim=0)
    torch.testing.assert_close(net.online.cluster_projector.marginal, mean, atol=1e-4, rtol=0)


def test_a_cluster_is_the_sum_of_its_prototypes():
    net, _ = _exchange(FederatedSpectral(**ARCS), [points for _, points in SHARDS])
    head = net.online.cluster_projector
    assert (head.groups.sum(dim=1) == 1).all()
    similar = head.assign_to_prototypes(SHARDS[0][1])
    for cluster in (0, 1):
        expected = similar[:, head.groups[:, cluster] == 1].sum(dim=1)
        torch.testing.assert_close(head(SHARDS[0][1])[:, cluster], expected)


def test_clusters_are_not_scored_before_prototypes_are_merged():
    *_, centroids, merging = FederatedSpectral().stages()
    assert (HEAD in centroids.shared, HEAD in merging.shared) == (False, True)


def _blobs(classes, seed, images=120):
    """Points around the axes of these classes."""
    draw = np.random.default_rng(seed)
    points = np.concatenate([np.eye(3)[label] + draw.normal(0, 0.1, (images, 3)) for label in classes])
    return torch.from_numpy(points).float()


def _groups(net):
    return net.online.cluster_projector.groups


def test_clients_that_hold_the_same_images_are_grouped_as_without_ownership():
    shards = [_blobs([0, 1, 2], client) for client in range(4)]
    found, expected = (
        _groups(_exchange(FederatedSpectral(ownership=ownership, **ARCS), shards, clusters=3)[0])
        for ownership in (True, False)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_clients_whose_images_look_different_are_grouped_by_images_and_told(caplog):
    """Each has both arcs, along another stretch of them: two stretches would make a cluster per client."""
    draw, shards = np.random.default_rng(0), []
    for client in range(3):
        points = _arcs(np.repeat([0, 1], 150), client)
        points[:, :2] = torch.from_numpy(_stretch(draw.uniform(client * 1.5, client * 1.5 + 1.5, 300)))
        shards.append(points)
    net, _ = _exchange(FederatedSpectral(**ARCS), shards)
    assert "images of clients look different" in caplog.text
    assigned = net.online.assign(net.online.encoder(torch.cat(shards))).argmax(dim=1).numpy()
    assert accuracy(np.tile(np.repeat([0, 1], 150), 3), assigned) == 1.0


def _stretch(angle):
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


@pytest.mark.parametrize(("hidden", "asked"), [(False, True), (True, False)])
def test_holders_count_if_clients_differ_and_their_sum_is_not_hidden(monkeypatch, hidden, asked):
    """If only sums are known, each update has the mean of all clients: all hold the same."""
    asks = []
    original = federated_spectral.profiled_cut
    monkeypatch.setattr(federated_spectral, "profiled_cut", lambda *given: asks.append(1) or original(*given))
    method, shards = FederatedSpectral(**ARCS), [_blobs([client], client) for client in range(3)]
    net, updates = _exchange(method, shards, clusters=3)
    if hidden:
        mean = sum(update.extras["affinity"] for update in updates) / 3
        updates = [replace(update, extras={"affinity": mean}) for update in updates]
    asks.clear()
    method.stages()[-1].combine(updates, detached(net.state_dict()))
    assert bool(asks) == asked


BAD = {
    "Its extra tensors are none; expected affinity.": {},
    "Its affinity is torch.float32 of shape (3, 3); expected torch.float32 of (820,).": {
        "affinity": torch.zeros(3, 3)
    },
    "Its affinities are not those of one soft assignment per image.": {"affinity": torch.full((820,), -1.0)},
}


@pytest.mark.parametrize("reason", BAD)
def test_impossible_affinities_are_refused(reason):
    method = FederatedSpectral(members=2, **ARCS)
    _, updates = _exchange(method, [points for _, points in SHARDS])
    assert method.stages()[-1].extras_error(replace(updates[0], extras=BAD[reason])) == reason


def test_affinities_of_one_member_alone_are_refused():
    method = FederatedSpectral(members=2, **ARCS)
    _, (update, *_) = _exchange(method, [points for _, points in SHARDS])
    affinity = torch.zeros(40, 40)
    affinity[:20, :20] = update.samples / 20**2
    changed = replace(update, extras={"affinity": upper_triangle(affinity)})
    assert "not those of one soft assignment" in method.stages()[-1].extras_error(changed)


def _centroids(members=2):
    """The stage centroids and a client's update, in which every member has a set of its own."""
    method, net = FederatedSpectral(members=members, **ARCS), Network(Branch(nn.Flatten()))
    method.extend(net, 3, 2)
    stage, points = method.stages()[0], SHARDS[0][1]
    shared = select(detached(net.state_dict()), stage.shared)
    return stage, Update(0, stage.name, 1, len(points), None, shared, stage.extras(net, [points]))


def test_each_member_has_a_set_of_centroids_of_all_images():
    stage, update = _centroids()
    assert stage.extras_error(update) == ""
    assert set(update.extras) == {"centroids", "sizes", "centroids_1", "sizes_1"}
    assert update.extras["sizes"].sum() == update.extras["sizes_1"].sum() == update.samples
    assert set(_centroids(members=1)[1].extras) == {"centroids", "sizes"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sizes_1": lambda sizes: 2 * sizes}, "The sizes of its centroids do not sum"),
        ({"centroids_1": lambda rows: 2 * rows}, "Its centroids lie outside the unit sphere."),
        ({"centroids_1": lambda rows: rows[:, :2]}, "Its centroids_1 is torch.float32 of shape"),
    ],
)
def test_a_set_of_any_member_that_cannot_be_is_refused(change, reason):
    stage, update = _centroids()
    changed = {name: function(update.extras[name]) for name, function in change.items()}
    assert stage.extras_error(replace(update, extras={**update.extras, **changed})).startswith(reason)


@pytest.mark.parametrize(
    "options",
    [{"prototypes": 0.0}, {"temperature": -1.0}, {"members": 0}, {"balance": -0.1}, {"variance": 0.0}],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(InputError, match=f"clustering.{next(iter(options))}"):
        FederatedSpectral(**options)
