"""Cross-client contrast: negatives from other clients' images through their second moment."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmcc.losses import spectral_contrast
from fedmcc.messages import Task, Update
from fedmcc.methods.cross_client_contrast import Outputs
from fedmcc.methods.fedmcc_plus import FedMCCPlus
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select


def _setup(repulsion=3.0, emphasis=0.0):
    method = FedMCCPlus(projections=6, repulsion=repulsion, emphasis=emphasis)
    encoder = ConvNetOptions(width=2, norm="group").build(1, 8)
    net = method.build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[1]


def _unit(n, seed):
    rows = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1)


def _receive(net, stage, memory, extras, round=2):
    shared = detached(select(net.state_dict(), stage.shared))
    stage.receive(net, Task(0, stage.name, round, shared, extras), memory)


def test_spectral_contrast_is_the_sum_over_pairs():
    u, v = _unit(5, 1), _unit(5, 2)
    pairs = [float(u[i] @ v[j]) ** 2 for i in range(5) for j in range(5) if i != j]
    positives = [float(u[i] @ v[i]) for i in range(5)]
    assert float(spectral_contrast(u, v, 1.7)) == pytest.approx(1.7 * np.mean(pairs) - 2 * np.mean(positives))


def test_two_clients_together_have_the_gradient_of_one_that_holds_all_images():
    """The repulsion gradients of two clients, averaged by size, equal that of one pooled batch."""
    net, stage = _setup()
    a, b = torch.rand(2, 12, 1, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    net.double()
    parts = [slice(0, 4), slice(4, 12)]

    def moment(rows):
        with torch.no_grad():
            z = [F.normalize(net.online.instance(net.online.encoder(view[rows])), dim=1) for view in (a, b)]
        return (z[0].T @ z[0] + z[1].T @ z[1]) / (2 * len(z[0]))

    def gradient(rows, others, share):
        net.zero_grad()
        net.others.copy_(others)
        net.share.fill_(share)
        out = stage.represent(net, a[rows], b[rows])
        repelled = stage.loss(out) + 2 * (out.z_a * out.z_b).sum(dim=1).mean()
        if share > 0:  # a batch leaves out positive pairs: use the second moment of the batch instead
            n = len(out.z_a)
            near = (out.z_a @ out.z_b.T).square().sum() - (out.z_a * out.z_b).sum(dim=1).square().sum()
            repelled = repelled - stage.repulsion * share * near / (n * (n - 1))
            own = 0.5 * (out.z_a.T @ out.z_a + out.z_b.T @ out.z_b) / n
            repelled = repelled + stage.repulsion * share * own.square().sum()
        repelled.backward()
        return torch.cat([p.grad.flatten() for p in net.online.encoder.parameters()])

    shares = [4 / 12, 8 / 12]
    alone = gradient(slice(0, 12), torch.zeros(6, 6), 1.0)
    together = sum(
        share * gradient(rows, (1 - share) * moment(other), share)
        for share, rows, other in zip(shares, parts, parts[::-1], strict=True)
    )
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-9)


def test_the_loss_attracts_views_and_repels_what_is_near_in_this_client_and_in_others():
    _, stage = _setup(repulsion=2.0)
    z_a, z_b = _unit(4, 1), _unit(4, 2)
    others, share = torch.rand(4, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64)
    expected = float(spectral_contrast(z_a, z_b, 0.5)) + 2.0 * 2 * float(others.mean())
    loss = stage.loss(Outputs(z_a, z_b, others, others, share.expand(4)))
    assert float(loss) == pytest.approx(expected)


def test_there_is_no_moment_of_other_clients_in_the_first_round():
    net, stage = _setup()
    net.others.fill_(9)
    _receive(net, stage, {"samples": torch.tensor(30)}, {}, round=1)
    assert not net.others.any()
    assert float(net.share) == 1.0


@pytest.mark.parametrize("last_round", [1, None, 0])
def test_the_clients_own_moment_is_subtracted_only_if_it_is_included(last_round):
    """The number of images in the moment grows by those of a client that was not drawn in the last round."""
    net, stage = _setup()
    own, rest = _unit(3, 1).T @ _unit(3, 1) / 3, _unit(9, 2).T @ _unit(9, 2) / 9
    net.own.copy_(own)
    memory = {"samples": torch.tensor(30)}
    if last_round is not None:
        memory["round"] = torch.tensor(last_round)
    took_part = last_round == 1
    mean = 0.3 * own + 0.7 * rest if took_part else rest
    count = 100 if took_part else 70
    _receive(net, stage, memory, {"moment": mean.float(), "samples": torch.tensor(count)})
    torch.testing.assert_close(net.others, 0.7 * rest.float(), atol=1e-6, rtol=0)
    assert float(net.share) == pytest.approx(0.3)
    assert int(memory["round"]) == 2


@pytest.mark.parametrize(("angle", "factor"), [(0, 1.0), (60, 1 + 2 * (1 - 0.25)), (90, 3.0)])
def test_images_of_other_clients_repel_more_if_their_moment_is_another(angle, factor):
    """Moments of one direction each: their cosine is the squared cosine of the angle."""
    net, stage = _setup(emphasis=2.0)
    own, other = torch.eye(6)[0], torch.zeros(6)
    other[:2] = torch.tensor([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    net.own.copy_(own.outer(own))
    memory = {"samples": torch.tensor(30)}  # it did not take part in the last round
    _receive(net, stage, memory, {"moment": other.outer(other), "samples": torch.tensor(70)})
    torch.testing.assert_close(net.others, 0.7 * factor * other.outer(other))


def test_a_client_that_has_sent_no_moment_yet_repels_as_usual():
    net, stage = _setup(emphasis=2.0)
    moment = torch.eye(6) / 6
    _receive(net, stage, {"samples": torch.tensor(30)}, {"moment": moment, "samples": torch.tensor(70)})
    torch.testing.assert_close(net.others, 0.7 * moment)


def test_a_client_sends_the_mean_outer_product_of_its_projections():
    net, stage = _setup()
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    sent = stage.extras(net, images.split(4))["moment"]
    net.eval()
    with torch.no_grad():
        z = F.normalize(net.online.instance(net.online.encoder(images)), dim=1).numpy()
    np.testing.assert_allclose(sent, np.mean([np.outer(row, row) for row in z], axis=0), atol=1e-6)


def test_the_server_weighs_moments_by_images():
    net, stage = _setup()
    shared = detached(select(net.state_dict(), stage.shared))
    moments = [torch.eye(6) / 6, torch.diag(torch.tensor([1.0, 0, 0, 0, 0, 0]))]
    updates = [
        Update(client, stage.name, 1, samples, 0.0, shared, {"moment": moment})
        for client, (samples, moment) in enumerate(zip((30, 10), moments, strict=True))
    ]
    _, extras = stage.combine(updates, detached(net.state_dict()))
    torch.testing.assert_close(extras["moment"], 0.75 * moments[0] + 0.25 * moments[1])
    assert int(extras["samples"]) == 40


def test_a_moment_of_longer_vectors_is_refused():
    net, stage = _setup()
    shared = detached(select(net.state_dict(), stage.shared))
    update = Update(0, stage.name, 1, 30, 0.0, shared, {"moment": 1e6 * torch.eye(6)})
    assert stage.extras_error(update) == "Its second moment is not that of unit vectors."
