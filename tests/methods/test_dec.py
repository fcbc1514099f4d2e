import math
from dataclasses import replace

import pytest
import torch

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.dec import DEC, sharpened
from fedmcc.methods.inputs import PLAIN, ROW, VIEW, Overview
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.views import Views

N = 24


def _net(**options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), DEC(code=3, **options)
    net = method.build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    stage = method.stages()[-1]
    net.notes = stage.first_notes(net, N)
    return net.eval(), stage


def _images():
    return Views().plain(torch.from_numpy(Synthetic(samples=N, size=8, channels=1).load().images))


def _overview(epoch=0, epochs=10):
    return Overview(lambda: iter(_images().split(10)), epoch, epochs, seed=0)


def _assignments(net):
    return net.online.assign(net.online.encoder(_images())).detach()


def test_targets_are_those_of_a_double_loop():
    q = torch.rand(6, 3, dtype=torch.float64).softmax(dim=1)
    found = sharpened(q, q.mean(dim=0))
    for i in range(6):
        weights = [float(q[i, k]) ** 2 / sum(float(row[k]) for row in q) for k in range(3)]
        for k in range(3):
            assert float(found[i, k]) == pytest.approx(weights[k] / sum(weights), rel=1e-12)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6, dtype=torch.float64))


def test_the_loss_is_the_divergence_of_q_from_p_and_0_for_equal_ones():
    net, stage = _net()
    p, q = torch.rand(2, 5, 4).softmax(dim=2)
    expected = sum(float(p[i, k]) * math.log(float(p[i, k] / q[i, k])) for i in range(5) for k in range(4))
    zeros = torch.zeros(5)
    outputs = stage.represent(net, _images()[:5], torch.arange(5))
    assert stage.loss(outputs._replace(p=p, q=q)).item() == pytest.approx(expected / 5, rel=1e-4)
    assert stage.loss(outputs._replace(p=q, q=q, errors=zeros)).item() == pytest.approx(0, abs=1e-6)


def test_the_gradient_of_the_centres_is_the_published_one():
    net, stage = _net()
    net.double()
    images, rows = _images()[:3].double(), torch.tensor([5, 0, 2])
    net.notes["p"] = torch.rand(N, 4, dtype=torch.float64).softmax(dim=1)
    vectors = net.online.cluster_projector.vectors.weight
    stage.loss(stage.represent(net, images, rows)).backward()
    codes, p = net.online.encoder(images).detach(), net.notes["p"][rows]
    q = net.online.assign(codes).detach()
    for k, centre in enumerate(vectors.detach()):
        terms = [
            (p[i, k] - q[i, k]) * (codes[i] - centre) / (1 + (codes[i] - centre).square().sum())
            for i in range(3)
        ]
        torch.testing.assert_close(vectors.grad[k], -2 * sum(terms) / 3)


def test_with_one_client_targets_use_its_own_sizes():
    net, stage = _net()
    q = _assignments(net)
    stage.prepare(net, _overview(0))
    first = net.notes["p"]
    torch.testing.assert_close(first, sharpened(q, torch.full((4,), 0.25)))  # the head's sizes before
    torch.testing.assert_close(net.online.cluster_projector.marginal, q.mean(dim=0))
    with torch.no_grad():
        net.online.cluster_projector.vectors.weight.mul_(1.5)
    q = _assignments(net)
    stage.prepare(net, _overview(1))
    torch.testing.assert_close(net.notes["p"], sharpened(q, q.mean(dim=0)), rtol=1e-4, atol=1e-6)


def test_with_several_clients_targets_use_the_sizes_of_all():
    net, stage = _net()
    stage.prepare(net, _overview(0))
    everybody = torch.tensor([0.1, 0.2, 0.3, 0.4])
    net.online.cluster_projector.marginal.copy_(everybody)  # the average that the server sends
    stage.prepare(net, _overview(1))
    torch.testing.assert_close(net.notes["p"], sharpened(_assignments(net), everybody), rtol=1e-4, atol=1e-6)


def test_in_a_round_of_several_epochs_the_sizes_of_all_are_kept():
    net, stage = _net()
    stage = replace(stage, epochs=2)
    everybody = torch.tensor([0.1, 0.2, 0.3, 0.4])
    stage.prepare(net, _overview(0))
    net.online.cluster_projector.marginal.copy_(everybody)
    for epoch in (2, 3):
        stage.prepare(net, _overview(epoch))
        torch.testing.assert_close(net.notes["all"], everybody)


def test_between_intervals_the_targets_stay_and_changes_are_counted():
    net, stage = _net(interval=3)
    stage.prepare(net, _overview(0))
    assert float(net.notes["changed"]) == 1  # there was no assignment before
    before = net.notes["p"]
    with torch.no_grad():
        net.online.cluster_projector.vectors.weight.copy_(
            net.online.cluster_projector.vectors.weight.roll(1, dims=0)
        )
    for epoch in (1, 2):
        stage.prepare(net, _overview(epoch))
        assert net.notes["p"] is before
    assigned = net.notes["assigned"]
    stage.prepare(net, _overview(3))
    changed = (assigned != net.notes["assigned"]).float().mean()
    assert float(net.notes["changed"]) == float(changed) == 1  # all centres have other numbers


def test_variants_train_the_decoder_and_see_views():
    assert DEC().stages()[-1].trained == ("online",)
    assert DEC().stages()[-1].sees == (PLAIN, ROW)
    idec = DEC(reconstruction_weight=10.0).stages()[-1]
    assert idec.trained == idec.shared == ("online", "decoder")
    assert DEC(augment=True).stages()[-1].sees == (VIEW, ROW)


def test_the_weighted_error_is_added():
    (net, plain), images, rows = _net(), _images()[:5], torch.arange(5)
    weighted = DEC(code=3, reconstruction_weight=10.0).stages()[-1]
    reconstructed = net.decoder(net.online.encoder(images)).sigmoid()
    error = (reconstructed - images).square().mean()
    found = weighted.loss(weighted.represent(net, images, rows))
    expected = plain.loss(plain.represent(net, images, rows)) + 10 * error
    torch.testing.assert_close(found, expected)


def test_stages_follow_each_other_and_hardening_learns_slowly():
    stages = DEC(hardening_rate=0.2).stages()
    assert [stage.name for stage in stages] == ["reconstruction", "seeds", "lloyd", "hardening"]
    assert stages[-1].learning_rate_factor == 0.2


@pytest.mark.parametrize(
    ("field", "value"),
    [("lloyd_rounds", 0), ("hardening_rounds", 0), ("hardening_rate", 0.0), ("interval", 0)],
)
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is 0"):
        DEC(**{field: value})


def test_a_negative_weight_is_refused_by_name():
    with pytest.raises(InputError, match=r"method\.reconstruction_weight is -1"):
        DEC(reconstruction_weight=-1.0)
