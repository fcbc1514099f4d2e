import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.inputs import Overview
from fedmcc.methods.neighbour_agreement import Assigned
from fedmcc.methods.scan import SCAN
from fedmcc.methods.self_labelling import Labelled
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.views import Views


def _built(**options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), SCAN(hidden=8, projections=4, heads=2, **options)
    return method.build(encoder, encoder.features, 3).eval(), method.stages()


def _entropy(p):
    return -sum(float(each) * math.log(float(each)) for each in p)


def test_the_loss_of_each_head_is_that_of_a_loop():
    _, (_, stage, _) = _built(entropy_weight=5.0)
    y, neighbour = torch.rand(2, 6, 2, 3).softmax(dim=3)
    found = stage.by_head(Assigned(y, neighbour, torch.zeros(6, 2, 3), torch.full((6,), 6.0)))
    for head in range(2):
        agreement = sum(math.log(float(y[i, head] @ neighbour[i, head])) for i in range(6)) / 6
        expected = -agreement - 5 * _entropy(y[:, head].mean(dim=0))
        assert found[head].item() == pytest.approx(expected, rel=1e-5)


def test_neighbours_are_the_image_and_the_nearest_by_cosine_and_found_once():
    net, (_, stage, _) = _built(neighbours=4)
    images = Views().plain(torch.from_numpy(Synthetic(samples=12, size=8, channels=1).load().images))
    net.notes = stage.first_notes(net, 12)
    stage.prepare(net, Overview(lambda: iter(images.split(5)), 0, 10, seed=0))
    table = net.notes["partners"]
    assert table.shape == (12, 1, 4)
    z = net.online.instance(net.online.encoder(images))
    for i in range(12):
        similarity = F.cosine_similarity(z[i : i + 1], z, dim=1)
        similarity[i] = 2
        assert table[i, 0].tolist() == similarity.argsort(descending=True, stable=True)[:4].tolist()
    stage.prepare(net, Overview(lambda: iter(()), 1, 10, seed=0))
    assert net.notes["partners"] is table


def test_the_cluster_sizes_are_those_of_all_clients():
    """Two other images in the first cluster: f is the mean over eight images."""
    _, (_, stage, _) = _built(entropy_weight=5.0)
    y = torch.rand(6, 1, 3).softmax(dim=2)
    others = torch.tensor([2.0, 0, 0]).expand(6, 1, 3)
    with_others, without = (
        stage.by_head(Assigned(y, y, sizes, torch.full((6,), 6.0))).item() for sizes in (others, 0 * others)
    )
    mean = y[:, 0].mean(dim=0)
    f = (torch.tensor([2.0, 0, 0]) + 6 * mean) / 8
    assert with_others - without == pytest.approx(5 * float((mean * (f.log() - mean.log())).sum()), rel=1e-4)


def test_self_labelling_is_weighted_cross_entropy_of_confident_images():
    _, (*_, stage) = _built(confidence=0.9)
    plain = torch.tensor([[0.95, 0.03, 0.02], [0.96, 0.02, 0.02], [0.02, 0.97, 0.01], [0.5, 0.3, 0.2]])
    view = torch.rand(4, 3).softmax(dim=1)
    losses = [-math.log(float(view[i, k])) for i, k in ((0, 0), (1, 0), (2, 1))]
    expected = ((losses[0] + losses[1]) / 2 + losses[2]) / 2  # each cluster has the same weight
    assert stage.loss(Labelled(plain, view)).item() == pytest.approx(expected, rel=1e-5)


def test_without_a_confident_image_the_loss_is_0_with_a_gradient():
    _, (*_, stage) = _built()
    view = torch.rand(4, 3).softmax(dim=1).requires_grad_()
    loss = stage.loss(Labelled(torch.full((4, 3), 1 / 3), view))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(view.grad, torch.zeros_like(view))


def test_stages_train_what_they_use():
    _, stages = _built()
    assert [stage.name for stage in stages] == ["representation", "neighbours", "self-labelling"]
    assert stages[0].trained == ("online.encoder", "online.instance_projector")
    assert stages[1].trained == stages[2].trained == ("online.encoder", "online.cluster_projector")
    assert stages[2].learning_rate_factor == pytest.approx(0.1)


@pytest.mark.parametrize(("field", "value"), [("heads", 0), ("neighbours", 0), ("confidence", 1.5)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        SCAN(**{field: value})
