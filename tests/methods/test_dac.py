import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.dac import DAC, pair_loss
from fedmcc.methods.inputs import Overview
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.heads import normalised_head


def _unit(n=6, k=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return F.normalize((3 * torch.randn(n, k, generator=draw, dtype=torch.float64)).softmax(dim=1), dim=1)


@pytest.mark.parametrize(("upper", "lower"), [(0.95, 0.455), (0.7, 0.3), (0.5, 0.5)])
def test_the_loss_is_that_of_a_double_loop(upper, lower):
    view, plain, total, count = _unit(), _unit(seed=1), 0.0, 0
    for i in range(6):
        for j in range(6):
            target = float(plain[i] @ plain[j])
            if lower <= target < upper:
                continue
            s = min(max(float(view[i] @ view[j]), 1e-6), 1 - 1e-6)
            total, count = total - math.log(s if target >= upper else 1 - s), count + 1
    assert 0 < count <= 36
    found = pair_loss(view, plain, torch.tensor(upper), torch.tensor(lower))
    assert found.item() == pytest.approx(total / count)
    assert count == 36 or lower < upper  # with equal thresholds, all pairs count


def test_without_a_decided_pair_the_loss_is_0_with_a_gradient():
    view = _unit().requires_grad_()
    loss = pair_loss(view, _unit(), torch.tensor(2.0), torch.tensor(-1.0))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(view.grad, torch.zeros_like(view))


@pytest.mark.parametrize(("epoch", "upper", "lower"), [(0, 0.95, 0.455), (5, 0.725, 0.4775), (10, 0.5, 0.5)])
def test_thresholds_move_towards_each_other(epoch, upper, lower):
    encoder, method = ConvNetOptions(width=2).build(1, 8), DAC()
    net, (stage,) = method.build(encoder, encoder.features, 3), method.stages()
    net.notes = stage.first_notes(net, 4)
    stage.prepare(net, Overview(lambda: iter(()), epoch, 10, seed=0))
    outputs = stage.represent(net, *torch.rand(2, 4, 1, 8, 8))
    torch.testing.assert_close(outputs.upper, torch.full((4,), upper))
    torch.testing.assert_close(outputs.lower, torch.full((4,), lower))
    assert not outputs.plain.requires_grad


def test_with_batch_statistics_no_cluster_wins_everywhere():
    head = normalised_head(5, 4, 4, "batch")
    y = head(torch.randn(64, 5) + 10)
    assert (y > 1 / 4).any(dim=0).all()


@pytest.mark.parametrize("options", [{"upper": 0.4}, {"lower": 0.6}, {"upper": 1.5}])
def test_thresholds_on_the_wrong_side_are_refused(options):
    with pytest.raises(InputError, match=r"method\.lower is .* and method\.upper is"):
        DAC(**options)
