"""The default clustering, from the clients' statistics to the head of the network."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods import informative
from fedmcc.methods.centroids import HEAD, VECTORS
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.informative import InformativeClustering, chosen_number, head_of, sampled_rows
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.matrices import from_upper_triangle, upper_triangle
from fedmcc.numerics.state_dicts import detached, select


def _exchange(method, shards, clusters):
    """The network after all rounds, the updates of the last round, and what the server keeps of it."""
    net = Network(Branch(nn.Flatten()))
    torch.manual_seed(0)
    method.extend(net, shards[0].shape[1], clusters)
    for stage in method.stages():
        for _ in range(stage.rounds):
            model = detached(net.state_dict())
            shared = select(model, stage.shared)
            updates = [
                Update(client, stage.name, 1, len(points), None, shared, stage.extras(net, [points]))
                for client, points in enumerate(shards)
            ]
            assert [stage.extras_error(update) for update in updates] == [""] * len(updates)
            combined = stage.combine(updates, model)
            net.load_state_dict({**model, **combined.weights})
    return net, updates, combined.extras


def _blobs(labels, seed, noise=0.25, features=12):
    """Points around one direction per class."""
    draw = torch.Generator().manual_seed(seed)
    return torch.eye(features)[labels] + noise * torch.randn(len(labels), features, generator=draw)


def _arcs(labels, seed):
    """Two long arcs on the sphere, one above the other: each end is closer to the other arc."""
    draw = np.random.default_rng(seed)
    angle = draw.uniform(0, 4.5, len(labels))
    height = np.where(labels == 0, 0.35, -0.35) + draw.normal(0, 0.03, len(labels))
    return torch.from_numpy(np.stack([np.cos(angle), np.sin(angle), height], axis=1)).float()


def _accuracy(net, shards, labels):
    assigned = net.online.assign(torch.cat(shards)).argmax(dim=1).numpy()
    return accuracy(np.concatenate(labels), assigned)


def _two_classes_each(clients=5, images=90):
    labels = [np.repeat([2 * client, 2 * client + 1], images) for client in range(clients)]
    return labels, [_blobs(own, client) for client, own in enumerate(labels)]


def _all_classes_each(clients=3, classes=6, images=40):
    labels = [np.repeat(np.arange(classes), images) for _ in range(clients)]
    return labels, [_blobs(own, client) for client, own in enumerate(labels)]


@pytest.mark.parametrize("sharing", [_two_classes_each, _all_classes_each])
@pytest.mark.parametrize(
    "options", [{}, {"prototype_rounds": 10, "prototypes": 6.0, "smallest": 1}, {"neighbours": 0}]
)
def test_blobs_are_found_however_clients_share_them(sharing, options):
    labels, shards = sharing()
    clusters = len(np.unique(np.concatenate(labels)))
    net, _, _ = _exchange(InformativeClustering(**options), shards, clusters)
    assert _accuracy(net, shards, labels) > 0.95


def test_arcs_are_separated_by_merged_prototypes_and_not_by_one_each():
    labels = [np.repeat([0, 1], 150), np.repeat([0, 1], 150), np.repeat([0], 200), np.repeat([1], 200)]
    shards = [_arcs(own, client) for client, own in enumerate(labels)]
    net, _, _ = _exchange(InformativeClustering(temperature=0.02), shards, 2)
    assert _accuracy(net, shards, labels) > 0.98
    net, _, _ = _exchange(FederatedKMeans(axes=0.0, temperature=0.02), shards, 2)
    assert _accuracy(net, shards, labels) < 0.8


def test_blobs_of_one_class_are_joined_by_the_client_that_holds_them():
    """Each of four clients has a class of two blobs: only their owner tells that they belong together."""
    labels = [np.repeat([client, client + 4], 100) for client in range(4)]
    shards = [_blobs(own, client) for client, own in enumerate(labels)]
    for differ, expected in (("auto", 1.0), ("classes", 1.0), ("looks", 0.5)):
        net, _, _ = _exchange(InformativeClustering(clients_differ_in=differ), shards, 4)
        assert _accuracy(net, shards, [own % 4 for own in labels]) == pytest.approx(expected, abs=0.05)


def test_at_its_client_an_image_is_assigned_at_least_as_well_and_rows_sum_to_1():
    labels = [np.repeat([2 * client, 2 * client + 1], 150) for client in range(3)]
    shards = [_blobs(own, client, noise=0.45, features=6) for client, own in enumerate(labels)]
    net, _, _ = _exchange(InformativeClustering(), shards, 6)
    head = net.online.cluster_projector
    at_owner = [head.at_owner(points) for points in shards]
    for rows in at_owner:
        torch.testing.assert_close(rows.sum(dim=1), torch.ones(len(rows)))
    assigned = torch.cat(at_owner).argmax(dim=1).numpy()
    assert accuracy(np.concatenate(labels), assigned) > _accuracy(net, shards, labels)


def _shifted(clients=3):
    """All clients have all classes, and each adds the same to all of its images."""
    labels = [np.repeat(np.arange(4), 80) for _ in range(clients)]
    shifts = 0.5 * torch.eye(12)[8 : 8 + clients]
    return labels, [_blobs(own, client, noise=0.15) + shifts[client] for client, own in enumerate(labels)]


def test_clients_whose_images_look_different_are_reported_and_their_looks_do_not_make_clusters(caplog):
    labels, shards = _shifted()
    net, _, _ = _exchange(InformativeClustering(), shards, 4)
    assert "images of clients look different" in caplog.text
    assert _accuracy(net, shards, labels) > 0.9
    net, _, _ = _exchange(InformativeClustering(clients_differ_in="classes"), shards, 4)
    assert _accuracy(net, shards, labels) < 0.5


@pytest.mark.parametrize("differ", ["classes", "looks"])
def test_who_says_in_what_clients_differ_is_not_warned(caplog, differ):
    _, shards = _shifted()
    _exchange(InformativeClustering(clients_differ_in=differ), shards, 4)
    assert caplog.text == ""


def test_the_histograms_of_all_clients_masked_give_the_clusters_of_images_alone():
    """Under secure aggregation each update is the mean of all: no owner is known."""
    method, (_, shards) = InformativeClustering(), _two_classes_each()
    net, updates, kept = _exchange(method, shards, 10)
    mean = {key: sum(update.extras[key] for update in updates) / 5 for key in updates[0].extras}
    masked = [replace(update, extras=mean) for update in updates]
    model, stage = detached(net.state_dict()), method.stages()[-1]
    found = stage.combine(masked, model).extras
    alone = stage.combine([replace(updates[0], samples=900, extras=_times(mean, 5))], model).extras
    torch.testing.assert_close(found["affinity"], kept["affinity"])
    assert found["cuts"].equal(alone["cuts"])


def _times(extras, factor):
    return {name: factor * value for name, value in extras.items()}


def test_noise_on_the_sums_leaves_clear_clusters():
    method, (labels, shards) = InformativeClustering(prototypes=4.0), _all_classes_each()
    net, updates, _ = _exchange(method, shards, 6)
    draw = torch.Generator().manual_seed(0)
    noisy = [
        replace(
            update, extras={k: v + torch.randn(v.shape, generator=draw) for k, v in update.extras.items()}
        )
        for update in updates
    ]
    model = detached(net.state_dict())
    net.load_state_dict({**model, **method.stages()[-1].combine(noisy, model).weights})
    assert _accuracy(net, shards, labels) > 0.95


def test_a_client_sends_the_sum_of_outer_products_of_the_means_over_nearest_images():
    method, (_, shards) = InformativeClustering(neighbours=3, prototypes=2.0), _all_classes_each()
    net, updates, _ = _exchange(method, shards, 6)
    head = net.online.cluster_projector
    points, p = head.whitening(shards[0]), head.assign_to_prototypes(shards[0]).double().detach()
    nearest = [(points @ row).argsort(descending=True)[:4] for row in points]  # the image is the first
    means = torch.stack([p[rows].mean(dim=0) for rows in nearest])
    expected = sum(torch.outer(row, row) for row in means)
    found = from_upper_triangle(updates[0].extras["affinity"].double())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(updates[0].extras["histogram"].double(), p.sum(dim=0), rtol=1e-4, atol=1e-4)


def test_an_image_that_is_stored_three_times_counts_three_times_and_is_not_its_own_neighbour():
    method, (_, shards) = InformativeClustering(neighbours=3), _all_classes_each()
    net, _, _ = _exchange(method, shards, 6)
    stage, points = method.stages()[-1], shards[0]
    once = stage.extras(net, [points])
    net.copy_of = torch.arange(len(points)).repeat(3)
    copied = stage.extras(net, points.repeat(3, 1).split(7))
    for name, value in once.items():
        torch.testing.assert_close(copied[name], 3 * value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("images", "used", "expected"), [(20, 50, 1), (100, 50, 4), (100, 10, 10), (40, 10, 8)]
)
def test_neighbourhoods_are_a_fifth_of_a_cluster_at_most(images, used, expected):
    """A client that uses ten of fifty prototypes holds about one of five clusters."""
    merging, p = InformativeClustering().stages()[-1], torch.zeros(images, 50)
    p[:, :used] = 1 / used
    assert merging.neighbourhood(p, clusters=5) == expected


def test_clients_send_centroids_in_proportion_to_their_images():
    method, net = InformativeClustering(prototypes=10.0, smallest=1), Network(Branch(nn.Flatten()))
    method.extend(net, 12, 6)
    stage, head = method.stages()[1], net.online.cluster_projector
    head.images.fill_(400)
    for images, expected in ((300, 45), (100, 15)):
        extras = stage.extras(net, [_blobs(np.arange(images) % 6, 0)])
        assert len(extras["sizes"]) == expected
        assert int(extras["sizes"].sum()) == images
        torch.testing.assert_close(extras["centroids"].norm(dim=1), torch.ones(expected))


@pytest.mark.parametrize(("smallest", "sets"), [(10, 2), (20, 4), (40, 5)])
def test_a_client_of_few_images_sends_several_sets_of_centroids_of_enough_images(smallest, sets):
    """Of 120 images, 16 of 48 prototypes are wanted, but each centroid must represent many images."""
    method, net = InformativeClustering(prototypes=8.0, smallest=smallest), Network(Branch(nn.Flatten()))
    method.extend(net, 12, 6)
    stage = method.stages()[1]
    net.online.cluster_projector.images.fill_(360)
    extras = stage.extras(net, [_blobs(np.arange(120) % 6, 0)])
    assert int(extras["sizes"].sum()) == sets * 120
    assert int(extras["sizes"].min()) >= smallest
    update = Update(0, stage.name, 1, 120, None, select(detached(net.state_dict()), stage.shared), extras)
    assert stage.extras_error(update) == ""


def test_unused_prototypes_have_no_share_of_any_image_and_no_cluster():
    """Each of three clients has room for two centroids of ten images, and there are 180 prototypes."""
    labels = [np.repeat([client, client + 3], 10) for client in range(3)]
    shards = [_blobs(own, client, noise=0.05) for client, own in enumerate(labels)]
    net, _, kept = _exchange(InformativeClustering(), shards, 3)
    head = net.online.cluster_projector
    unused = ~head.vectors.weight.any(dim=1)
    assert 0 < int(unused.sum()) < len(unused)
    assert not head.assign_to_prototypes(shards[0])[:, unused].any()
    assert not head.groups[unused].any()
    assert (kept["cuts"][:, unused] == -1).all()
    torch.testing.assert_close(head(shards[0]).sum(dim=1), torch.ones(20))


def test_the_only_client_may_send_more_centroids_than_there_are_prototypes():
    """For 60 prototypes, centroids of 15 of its 600 images on average are 40: it sends two sets of them."""
    labels = [np.arange(600) % 2]
    shards = [_blobs(labels[0], 0)]
    net, _, _ = _exchange(InformativeClustering(), shards, 2)
    assert _accuracy(net, shards, labels) > 0.98


def test_a_client_with_more_images_than_the_server_counts_sends_no_more_centroids_than_there_are_prototypes():
    method, net = InformativeClustering(prototypes=10.0, smallest=1), Network(Branch(nn.Flatten()))
    method.extend(net, 12, 6)
    net.online.cluster_projector.images.fill_(100)
    assert len(method.stages()[1].extras(net, [_blobs(np.arange(400) % 6, 0)])["sizes"]) == 60


def test_more_centroids_than_prototypes_are_joined():
    """Clients cannot send fewer than one centroid."""
    labels = [np.repeat(client % 3, 12) for client in range(9)]
    shards = [_blobs(own, client, noise=0.05) for client, own in enumerate(labels)]
    net, _, _ = _exchange(InformativeClustering(prototypes=1.0, neighbours=0), shards, 3)
    assert net.online.cluster_projector.vectors.weight.any(dim=1).all()
    assert _accuracy(net, shards, labels) == 1.0


def test_the_head_stores_the_share_of_images_in_each_cluster():
    _, shards = _all_classes_each()
    net, _, _ = _exchange(InformativeClustering(), shards, 6)
    mean = net.online.assign(torch.cat(shards)).mean(dim=0)
    torch.testing.assert_close(net.online.cluster_projector.marginal, mean, atol=0.01, rtol=0)


def test_a_prototype_belongs_to_clusters_as_its_affinities_do():
    affinity = torch.tensor([[3.0, 1, 0], [1, 4, 1], [0, 1, 5]], dtype=torch.float64) / 16
    hierarchy = {"affinity": upper_triangle(affinity), "cuts": torch.tensor([[0, 0, 0], [0, 0, 1]])}
    groups, marginal = head_of(hierarchy, clusters=2, width=3)
    torch.testing.assert_close(groups, torch.tensor([[1, 0, 0], [5 / 6, 1 / 6, 0], [1 / 6, 5 / 6, 0]]))
    torch.testing.assert_close(marginal, torch.tensor([10 / 16, 6 / 16, 0]))


def test_clusters_are_not_scored_before_prototypes_are_merged():
    for method in (InformativeClustering(), InformativeClustering(prototype_rounds=2)):
        _, prototypes, merging = method.stages()
        assert (HEAD in prototypes.shared, HEAD in merging.shared) == (False, True)


def test_affinities_of_many_images_are_those_of_a_sample_of_all_kinds_even_if_files_alternate(monkeypatch):
    monkeypatch.setattr(informative, "MOST_IMAGES", 300)
    labels = [np.arange(600) % 2]
    shards = [_blobs(labels[0], 0)]
    net, updates, _ = _exchange(InformativeClustering(), shards, 2)
    assert float(updates[0].extras["histogram"].sum()) == pytest.approx(600, abs=0.1)
    assert net.online.cluster_projector.marginal.numpy() == pytest.approx(0.5, abs=0.1)
    assert _accuracy(net, shards, labels) > 0.98


def test_a_sample_has_as_many_images_as_it_may_have():
    for count in (19_999, 20_000, 20_001, 60_000):
        rows = torch.arange(count)[sampled_rows(count)]
        assert len(rows.unique()) == len(rows) == min(count, 20_000)
    assert len(rows[rows % 2 == 0]) == pytest.approx(10_000, abs=300)  # four standard deviations of a draw


def test_the_number_of_well_separated_blobs_is_chosen():
    for classes in (3, 6):
        _, shards = _all_classes_each(classes=classes, images=60)
        net, _, _ = _exchange(InformativeClustering(choose=True), shards, 15)
        assert net.online.cluster_projector.in_use == classes


def test_the_hierarchy_gives_other_numbers_of_clusters():
    """Six blobs in three pairs are six clusters or three."""
    labels = [np.repeat(np.arange(6), 60) for _ in range(3)]
    pairs = torch.cat([torch.eye(12)[:6] + 0.6 * torch.eye(12)[[1, 0, 3, 2, 5, 4]]])
    draw = torch.Generator().manual_seed(0)
    shards = [pairs[own] + 0.08 * torch.randn(len(own), 12, generator=draw) for own in labels]
    net, _, kept = _exchange(InformativeClustering(), shards, 6)
    assert _accuracy(net, shards, labels) > 0.98
    head = net.online.cluster_projector
    head.groups, head.marginal = head_of(kept, 3, 3)
    assert _accuracy(net, shards, [own // 2 for own in labels]) > 0.98


@pytest.mark.parametrize(
    ("costs", "expected"), [([0.5, 0.2, 0.01, 0.001], 3), ([0.01, 0.01], 2), ([0.5, 0.2, 0.05], 4)]
)
def test_merges_that_lose_little_are_made(costs, expected):
    """costs[i] is what the merge from i + 2 clusters into one less loses."""
    assert chosen_number(np.cumsum([0.0, *costs])) == expected


@pytest.mark.parametrize(("clusters", "prototypes"), [(10, 300), (66, 1980), (100, 2000), (3000, 3000)])
def test_prototypes_are_bounded_and_not_fewer_than_clusters(clusters, prototypes):
    net = Network(Branch(nn.Flatten()))
    InformativeClustering().extend(net, 8, clusters)
    assert len(net.online.cluster_projector.vectors.weight) == prototypes


@pytest.mark.parametrize(("pretrained", "axes"), [(False, 64), (True, 32)])
def test_a_pretrained_encoder_has_fewer_axes(pretrained, axes):
    net = Network(Branch(nn.Flatten()))
    net.online.encoder.pretrained = pretrained
    InformativeClustering().extend(net, 512, 10)
    assert net.online.cluster_projector.whitening.axes.shape == (axes, 512)


IMAGES = 12
WEIGHTS = {VECTORS: torch.zeros(4, 2)}
EQUAL = {"affinity": upper_triangle(torch.full((4, 4), IMAGES / 16)), "histogram": torch.full((4,), 3.0)}
NOT_ASSIGNMENTS = "Its affinities are not those of one soft assignment per image."
INDEFINITE = torch.tensor([[0.0, 3, 0, 0], [3, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3]])
NEGATIVE = torch.diag(torch.tensor([4.0, 4, 4, 4])) + torch.diag(torch.tensor([-2.0]), 3)
BAD = {
    "missing": ({"histogram": None}, "Its extra tensors are affinity; expected affinity, histogram."),
    "square": (
        {"affinity": torch.ones(4, 4)},
        "Its affinity is torch.float32 of shape (4, 4); expected torch.float32 of (10,).",
    ),
    "short": (
        {"histogram": torch.full((3,), 4.0)},
        "Its histogram is torch.float32 of shape (3,); expected torch.float32 of (4,).",
    ),
    "indefinite": ({"affinity": upper_triangle(INDEFINITE)}, NOT_ASSIGNMENTS),
    "negative": ({"affinity": upper_triangle(NEGATIVE)}, NOT_ASSIGNMENTS),
    "too much": ({"affinity": 2 * EQUAL["affinity"]}, NOT_ASSIGNMENTS),
    "too many": ({"histogram": 2 * EQUAL["histogram"]}, NOT_ASSIGNMENTS),
    "fewer than none": ({"histogram": torch.tensor([14.0, -2, 0, 0])}, NOT_ASSIGNMENTS),
}


def _merging_error(extras):
    stage = InformativeClustering().stages()[-1]
    given = {name: value for name, value in {**EQUAL, **extras}.items() if value is not None}
    return stage.extras_error(Update(0, stage.name, 1, IMAGES, None, WEIGHTS, given))


def test_the_statistics_of_equal_images_are_accepted():
    assert _merging_error({}) == ""


@pytest.mark.parametrize("case", BAD)
def test_impossible_statistics_are_refused(case):
    extras, reason = BAD[case]
    assert _merging_error(extras) == reason


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([12], ""),
        ([6, 6, 4, 8], ""),  # two sets
        ([60], "The sizes of its centroids do not sum to its number of images."),
        ([6, 7], "The sizes of its centroids do not sum to its number of images."),
        ([6] * 10, "It has 10 centroids; at most 8 are allowed."),
        ([10, 2], "Its centroids represent fewer images than 4, the smallest number."),
    ],
)
def test_sets_of_centroids_must_be_of_all_images(sizes, reason):
    stage = InformativeClustering(smallest=4).stages()[1]
    extras = {"centroids": torch.zeros(len(sizes), 2), "sizes": torch.tensor(sizes)}
    assert stage.extras_error(Update(0, stage.name, 1, IMAGES, None, WEIGHTS, extras)) == reason


@pytest.mark.parametrize(
    "options", [{"prototypes": 0.0}, {"temperature": -1.0}, {"neighbours": -1}, {"prototype_rounds": -1}]
)
def test_invalid_options_are_refused(options):
    with pytest.raises(InputError, match=f"clustering.{next(iter(options))}"):
        InformativeClustering(**options)
