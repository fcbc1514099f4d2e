import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.inputs import Overview
from fedmcc.methods.propos import ProPos, scattering
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.views import Views

SMALL = {"hidden": 8, "projections": 4}


def _built(kind=ProPos, **options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), kind(**SMALL, **options)
    net, (stage,) = method.build(encoder, encoder.features, 3), method.stages()
    initialise(net, torch.Generator().manual_seed(0))
    net.notes = stage.first_notes(net, 12)
    return net, stage


def _images():
    return Views().plain(torch.from_numpy(Synthetic(samples=12, size=8, channels=1).load().images))


def test_scattering_is_that_of_a_loop_with_an_absent_cluster():
    q, k = torch.randn(2, 7, 4, dtype=torch.float64)
    labels, tau, total = [0, 0, 2, 2, 2, 3, 0], 0.5, 0.0  # cluster 1 has no image
    present = sorted(set(labels))

    def centre(rows, cluster):
        chosen = [rows[i] / rows[i].norm() for i, label in enumerate(labels) if label == cluster]
        return sum(chosen) / sum(chosen).norm()

    for cluster in present:
        own = centre(q, cluster)
        positive = math.exp(float(own @ centre(k, cluster)) / tau)
        others = sum(math.exp(float(own @ centre(q, other)) / tau) for other in present if other != cluster)
        total -= math.log(positive / (positive + others))
    found = scattering(q, k, torch.eye(4, dtype=torch.float64)[labels], tau)
    assert found.item() == pytest.approx(total / len(present))


def test_an_absent_cluster_has_a_finite_gradient():
    q = torch.randn(4, 3, requires_grad=True)
    scattering(q, torch.randn(4, 3), torch.eye(5)[[0, 0, 1, 1]], 0.5).backward()
    assert torch.isfinite(q.grad).all()


def test_without_clusters_and_noise_it_is_half_of_byols_loss():
    (net, stage), (byol, other) = _built(), _built(FedBYOL)
    a, b = torch.rand(2, 6, 1, 8, 8)
    loss = stage.loss(stage.represent(net, a, b, torch.arange(6)))
    assert loss.item() == (other.loss(other.represent(byol, a, b)) / 2).item()


def test_after_the_warm_up_clusters_are_k_means_of_the_targets_projections():
    net, stage = _built(warm_up=0.5, weight=0.3)
    net.eval()
    overview = Overview(lambda: iter(_images().split(5)), 4, 10, seed=1)
    stage.prepare(net, overview)
    assert float(net.notes["on"]) == 0
    stage.prepare(net, overview._replace(epoch=5))
    assert float(net.notes["on"]) == 1
    z = F.normalize(net.target.instance(net.target.encoder(_images())), dim=1).detach()
    cluster = net.notes["cluster"]
    assert torch.equal(cluster.sum(dim=1), torch.ones(12))
    centres = (cluster.T @ z) / cluster.sum(dim=0)[:, None]
    assert torch.equal(torch.cdist(z, centres).argmin(dim=1), cluster.argmax(dim=1))  # a fixed point


def test_noise_is_new_in_every_epoch_and_of_the_given_size():
    net, stage = _built(noise=0.5, warm_up=0.0)
    drawn = []
    for seed in (1, 2):
        stage.prepare(net.eval(), Overview(lambda: iter(_images().split(5)), 0, 10, seed=seed))
        drawn.append(net.notes["noise"])
    assert not torch.equal(*drawn)
    assert torch.cat(drawn).std().item() == pytest.approx(0.5, rel=0.3)


@pytest.mark.parametrize(("field", "value"), [("temperature", 0.0), ("warm_up", 2.0), ("weight", -1.0)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        ProPos(**{field: value})
