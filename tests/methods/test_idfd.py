import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.idfd import IDFD, decorrelation
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise


def _net(images=9, **options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), IDFD(projections=6, **options)
    net, stage = method.build(encoder, encoder.features, 4), method.stages()[0]
    initialise(net, torch.Generator().manual_seed(0))
    net.notes = stage.first_notes(net, images)
    return net.eval(), stage


def _discrimination(z, bank, rows, temperature):
    total = 0.0
    for vector, row in zip(z, rows, strict=True):
        scores = [math.exp(float(vector @ entry) / temperature) for entry in bank]
        total -= math.log(scores[row] / sum(scores))
    return total / len(z)


def _decorrelation(z, temperature):
    columns = [z[:, j] / z[:, j].norm() for j in range(z.shape[1])]
    total = 0.0
    for j, column in enumerate(columns):
        scores = [math.exp(float(column @ other) / temperature) for other in columns]
        total -= math.log(scores[j] / sum(scores))
    return total / len(columns)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_loss_is_that_of_a_loop_over_bank_and_features(temperature):
    net, stage = _net(temperature=temperature, weight=0.7)
    views, rows = torch.rand(5, 1, 8, 8), torch.tensor([8, 0, 3, 2, 7])
    z = F.normalize(net.online.instance(net.online.encoder(views)), dim=1).detach()
    expected = _discrimination(z, net.notes["bank"], rows.tolist(), temperature)
    expected += 0.7 * _decorrelation(z, 2.0)
    assert stage.loss(stage.represent(net, views, rows)).item() == pytest.approx(expected, rel=1e-5)


def test_after_a_step_the_entries_of_the_batch_move_and_have_length_1():
    net, stage = _net()
    before, rows = net.notes["bank"].clone(), torch.tensor([4, 1])
    outputs = stage.represent(net, torch.rand(2, 1, 8, 8), rows)
    stage.after_step(net, outputs)
    bank = net.notes["bank"]
    torch.testing.assert_close(bank.norm(dim=1), torch.ones(9))
    for z, row in zip(outputs.z, rows, strict=True):
        mean = 0.5 * before[row] + 0.5 * z
        torch.testing.assert_close(bank[row], mean / mean.norm())
    others = [row for row in range(9) if row not in (4, 1)]
    assert torch.equal(bank[others], before[others])
    assert not bank.requires_grad


@pytest.mark.parametrize("d", [3, 8])
def test_orthonormal_features_have_the_smallest_decorrelation(d):
    z = torch.linalg.qr(torch.randn(20, d, dtype=torch.float64)).Q
    lowest = math.log(math.exp(0.5) + d - 1) - 0.5
    assert decorrelation(z, 2.0).item() == pytest.approx(lowest, rel=1e-9)
    assert decorrelation(torch.ones(20, d, dtype=torch.float64), 2.0).item() == pytest.approx(math.log(d))


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.0), ("projections", 0), ("bank_momentum", 2.0)]
)
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        IDFD(**{field: value})
