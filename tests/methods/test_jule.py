import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.inputs import PLAIN, ROW, Overview
from fedmcc.methods.jule import JULE, triplet_loss
from fedmcc.numerics.agglomeration import first_clusters
from fedmcc.numerics.state_dicts import detached, select

BLOBS = 3


def _points(n=60, seed=0):
    draw = np.random.default_rng(seed)
    points = np.eye(5)[np.arange(n) % BLOBS] + 0.1 * draw.normal(size=(n, 5))
    return torch.from_numpy(points).float()


def _built(**options):
    method = JULE(neighbours=8, **options)
    net = method.build(nn.Flatten(), 5, BLOBS)
    return net, method.stages()


def _overview(points, epoch):
    return Overview(lambda: iter(points.split(16)), epoch, 20, seed=0)


def test_the_loss_is_that_of_a_loop_over_triplets():
    draw, labels = torch.Generator().manual_seed(0), [0, 1, 0, 2, 1, 0, 3]
    z = F.normalize(torch.randn(7, 4, generator=draw, dtype=torch.float64), dim=1)
    losses = []
    for a in range(7):
        for p in range(7):
            for n in range(7):
                if a != p and labels[a] == labels[p] and labels[a] != labels[n]:
                    near, far = (float((z[a] - z[other]).square().sum()) for other in (p, n))
                    losses.append(max(0.0, 1.5 * near - far + 0.2))
    found = triplet_loss(z, torch.tensor(labels), 0.2, 1.5)
    assert found.item() == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 0, 0]])
def test_without_a_triplet_the_loss_is_0_with_a_gradient(labels):
    z = F.normalize(torch.randn(4, 3), dim=1).requires_grad_()
    loss = triplet_loss(z, torch.tensor(labels), 0.2, 1.0)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_clusters_start_from_pixels_and_are_merged_every_period_down_to_the_number_of_classes():
    points, (net, (stage, _)), counts = _points(), _built(period=3, merged=0.5), []
    net.notes = stage.first_notes(net, 60)
    for epoch in range(13):
        stage.prepare(net, _overview(points, epoch))
        counts.append(int(net.notes["cluster"].max()) + 1)
    first = int(first_clusters(F.normalize(points, dim=1)).max()) + 1
    expected = [first]
    for _ in range(4):
        expected.append(max(BLOBS, expected[-1] // 2))
    assert counts == [expected[epoch // 3] for epoch in range(13)]
    assert first > 6


def test_the_centres_of_one_client_are_the_means_of_its_clusters():
    points, (net, (_, naming)) = _points(), _built()
    shared = detached(select(net.state_dict(), naming.shared))
    update = Update(0, naming.name, 1, 60, None, shared, naming.extras(net, points.split(16)))
    assert naming.extras_error(update) == ""
    centres = naming.combine([update], detached(net.state_dict())).weights[f"{HEAD}.vectors.weight"]
    unit = F.normalize(points, dim=1)
    expected = torch.stack([unit[blob::BLOBS].mean(dim=0) for blob in range(BLOBS)])
    order = centres[:, :BLOBS].argmax(dim=1).argsort()
    torch.testing.assert_close(centres[order], expected, rtol=1e-4, atol=1e-5)


def test_views_are_an_option():
    assert _built(augment=False)[1][0].sees == (PLAIN, ROW)


@pytest.mark.parametrize(("field", "value"), [("period", 0), ("merged", 1.5), ("margin", 0.0)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        JULE(**{field: value})
