import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.fedmoco import FedMoCo
from fedmcc.methods.inputs import Overview
from fedmcc.methods.pcl import PCL
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.cluster_widths import cluster_widths
from fedmcc.views import Views

SMALL = {"hidden": 8, "projections": 4, "queue": 16}


def _built(kind=PCL, **options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), kind(**SMALL, **options)
    net, (stage,) = method.build(encoder, encoder.features, 3), method.stages()
    initialise(net, torch.Generator().manual_seed(0))
    net.notes = stage.first_notes(net, 20)
    return net, stage


def _images():
    return Views().plain(torch.from_numpy(Synthetic(samples=20, size=8, channels=1).load().images))


def _overview(epoch=9):
    return Overview(lambda: iter(_images().split(7)), epoch, 10, seed=3)


def test_widths_are_those_of_a_loop():
    z = F.normalize(torch.randn(30, 4, dtype=torch.float64), dim=1)
    labels = torch.tensor([0] * 10 + [1] * 7 + [2] * 8 + [3] + [4] * 4)
    centres = torch.stack([z[labels == k].mean(dim=0) for k in range(5)])
    phi = []
    for k in range(5):
        rows = z[labels == k]
        total = sum(float((row - centres[k]).norm()) for row in rows)
        phi.append(total / (len(rows) * math.log(len(rows) + 10)))
    phi[3] = max(phi)  # a cluster of one image
    phi = np.clip(phi, np.percentile(phi, 10), np.percentile(phi, 90))
    np.testing.assert_allclose(cluster_widths(z, centres, labels, 0.2), 0.2 * phi / phi.mean(), rtol=1e-9)


def test_with_weight_0_it_is_moco_to_the_bit():
    (net, stage), (moco, other) = _built(weight=0.0), _built(FedMoCo)
    a, b = torch.rand(2, 6, 1, 8, 8)
    loss = stage.loss(stage.represent(net, a, b, torch.arange(6)))
    assert loss.item() == other.loss(other.represent(moco, a, b)).item()


def test_with_one_k_means_it_adds_cross_entropy_over_cosines():
    net, stage = _built(prototypes=(3,), weight=0.7)
    stage.prepare(net.eval(), _overview())
    net.notes["widths0"] = torch.full((3,), 0.2)
    rows = torch.tensor([4, 11, 0])
    outputs = stage.represent(net, *torch.rand(2, 3, 1, 8, 8), rows)
    moco = stage.loss(outputs._replace(prototypes=torch.zeros(3))).item()
    z = F.normalize(net.target.instance(net.target.encoder(_images())), dim=1)
    cluster = net.notes["cluster"][:, 0]
    centres = torch.stack([F.normalize(z[cluster == k].mean(dim=0), dim=0) for k in range(3)])
    torch.testing.assert_close(net.notes["centres0"], centres, rtol=1e-4, atol=1e-5)
    assert stage.loss(outputs).item() == pytest.approx(
        moco + 0.7 * outputs.prototypes.mean().item(), rel=1e-5
    )


def test_prototypes_start_after_the_warm_up_at_every_scale():
    net, stage = _built(prototypes=(2, 5), warm_up=0.5)
    stage.prepare(net.eval(), _overview(4))
    outputs = stage.represent(net, *torch.rand(2, 3, 1, 8, 8), torch.arange(3))
    assert outputs.prototypes.abs().max() == 0
    stage.prepare(net, _overview(5))
    assert [len(net.notes[f"centres{scale}"]) for scale in range(2)] == [2, 5]
    assert net.notes["cluster"].amax(dim=0).tolist() == [1, 4]


@pytest.mark.parametrize(("field", "value"), [("weight", -1.0), ("warm_up", 2.0), ("prototypes", ())])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is"):
        PCL(**{field: value})
