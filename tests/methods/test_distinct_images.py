"""Copies of an image: they count as images, but nothing that is sent stands for copies of a single one."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.federation import client as clients
from fedmcc.federation.client import Client
from fedmcc.messages import Task
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.distinct_images import distinct_images, distinct_points, nearest_images
from fedmcc.methods.informative import InformativeClustering
from fedmcc.methods.k_fed import KFed
from fedmcc.methods.lloyd import LloydKMeans
from fedmcc.methods.neighbours import NeighbourClustering
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.neighbours import nearest
from fedmcc.numerics.state_dicts import add_prefix, detached
from fedmcc.training.loop import Training
from fedmcc.views import Views

OUTLIER = torch.tensor([0.0, 0.0, 5.0])
COPIED = torch.arange(36).clamp_max(24)  # the last image is stored twelve times


def _points():
    blob = torch.tensor([4.0, 0, 0]) + 0.3 * torch.rand(24, 3, generator=torch.Generator().manual_seed(0))
    return torch.cat([blob, OUTLIER.expand(12, 3)])


def _net(method):
    net = Network(Branch(nn.Flatten()))
    torch.manual_seed(0)
    method.extend(net, 3, 2)
    head = net.online.cluster_projector
    head.vectors.weight.data.copy_(torch.eye(3)[torch.arange(len(head.vectors.weight)) % 2 * 2])
    return net


def _sent(method, number, copy_of):
    """What a client sends in a stage whose centres are in the direction of the blob and of the outlier."""
    net, stage = _net(method), method.stages()[number]
    net.copy_of, net.notes = copy_of, stage.first_notes(net, 36)
    return stage.extras(net, _points().split(7))


SUMS = {
    "lloyd": (LloydKMeans(), 1, "sums"),
    "votes": (NeighbourClustering(axes=0.0, neighbours=3, balance=0.0), 1, "sums"),
    "prototypes": (InformativeClustering(prototypes=1.0, prototype_rounds=1), 1, "sums"),
}


@pytest.mark.parametrize("name", SUMS)
def test_no_sum_stands_for_copies_of_one_image(name):
    method, number, key = SUMS[name]
    for copy_of, revealed in ((None, True), (COPIED, False)):
        sums = _sent(method, number, copy_of)[key].float()
        cosines = torch.cosine_similarity(sums, OUTLIER[None], dim=1)
        assert bool((cosines > 0.99).any()) == revealed
        assert (torch.cosine_similarity(sums, _points()[:1], dim=1) > 0.8).any()  # the blob is sent


@pytest.mark.parametrize(
    ("method", "number", "sets"), [(KFed(), 0, 1), (LloydKMeans(), 0, 1), (InformativeClustering(), 1, 5)]
)
def test_no_centroid_stands_for_copies_of_one_image_and_sizes_count_them(method, number, sets):
    sent = _sent(method, number, COPIED)
    distances = (sent["centroids"] - nn.functional.normalize(OUTLIER, dim=0)).norm(dim=1)
    assert distances.min() > 0.05
    assert int(sent["sizes"].sum()) == 36 * sets


def test_neighbours_are_the_nearest_different_images():
    points = _points()
    net = _net(LloydKMeans())
    net.copy_of = COPIED
    table = nearest_images(points, distinct_images(net, 36), 4)
    assert torch.equal(table[:25, 1:], nearest(points[:25], 4)[0])
    assert torch.equal(table[25:], table[24].expand(11, 5))


def test_of_a_sample_the_first_copy_in_it_stands_for_all():
    net = _net(LloydKMeans())
    net.copy_of = COPIED
    rows = torch.tensor([2, 30, 33, 35])
    first, copies, place = distinct_images(net, 36, rows)
    assert (rows[first].tolist(), copies.tolist(), place.tolist()) == ([2, 30], [1, 3], [0, 1, 1, 1])
    assert distinct_points(net, _points()).copies.tolist() == [1] * 24 + [12]


def test_a_client_finds_copies_in_its_images_whatever_the_batches(monkeypatch):
    monkeypatch.setattr(clients, "INFERENCE_BATCH", 5)  # the last batch has one image
    different = np.random.default_rng(0).integers(0, 255, (12, 1, 4, 4), dtype=np.uint8)
    client = Client(0, different[np.arange(36) % 12], Views(size=4), Training(batch_size=4), seed=0)
    method, net = LloydKMeans(rounds=1, smallest=4), Network(Branch(nn.Flatten()))
    method.extend(net, 16, 3)
    seeds = method.stages()[0]
    model = detached(net.state_dict())
    task = Task(0, seeds.name, 1, {name: model[name] for name in model if name.startswith(HEAD)})
    answer = client.answer(net, seeds, task, add_prefix("net", model))
    with pytest.raises(StopIteration) as end:
        next(answer)
    sizes = end.value.value[0].extras["sizes"]
    assert (sizes >= 12).all()  # four different images, three times each
    assert net.copy_of.tolist() == [row % 12 for row in range(36)]
