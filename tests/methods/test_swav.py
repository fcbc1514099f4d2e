import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.swav import Outputs, SwAV, balanced_codes
from fedmcc.networks.convnet import ConvNetOptions


def _scores(n=6, p=4, seed=0):
    return torch.rand(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _sinkhorn(logits, iterations):
    """Sums of columns to 1 / p and of rows to 1 / n in turn, entry by entry; then rows to 1."""
    n, p = logits.shape
    q = [[math.exp(value) for value in row] for row in logits.tolist()]
    for _ in range(iterations):
        columns = [sum(q[i][k] for i in range(n)) for k in range(p)]
        q = [[q[i][k] / columns[k] / p for k in range(p)] for i in range(n)]
        q = [[value / sum(row) / n for value in row] for row in q]
    return torch.tensor([[n * value for value in row] for row in q], dtype=torch.float64)


@pytest.mark.parametrize("iterations", [1, 3])
def test_codes_are_those_of_sinkhorn_and_knopp(iterations):
    logits = _scores() / 0.05
    torch.testing.assert_close(balanced_codes(logits, iterations), _sinkhorn(logits, iterations))


def test_codes_use_all_prototypes_equally_in_the_end():
    codes = balanced_codes(_scores(40, 5) / 0.2, 200)
    torch.testing.assert_close(
        codes.sum(dim=0), torch.full((5,), 8.0, dtype=torch.float64), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(40, dtype=torch.float64))


def test_the_loss_swaps_the_codes_of_a_loop():
    (stage,), a, b = SwAV().stages(), _scores(), _scores(seed=1)
    total = 0.0
    for code, scores in ((_sinkhorn(a / 0.05, 3), b), (_sinkhorn(b / 0.05, 3), a)):
        for i in range(6):
            exponentials = [math.exp(value / 0.1) for value in scores[i].tolist()]
            p = [value / sum(exponentials) for value in exponentials]
            total -= sum(float(code[i, k]) * math.log(p[k]) for k in range(4)) / 6 / 2
    assert stage.loss(Outputs(a, b)).item() == pytest.approx(total)


def test_scores_are_cosines_and_codes_carry_no_gradient():
    encoder, method = ConvNetOptions(width=2).build(1, 8), SwAV(hidden=8, projections=4, prototypes=5)
    net, (stage,) = method.build(encoder, encoder.features, 3).eval(), method.stages()
    a, b = torch.rand(2, 3, 1, 8, 8)
    found = stage.represent(net, a, b)
    z = net.online.instance(net.online.encoder(a))
    expected = F.cosine_similarity(z[:, None], net.prototypes.weight[None], dim=2)
    torch.testing.assert_close(found.a, expected)
    s_a, s_b = (scores.detach().requires_grad_() for scores in found)
    stage.loss(Outputs(s_a, s_b)).backward()
    codes = balanced_codes(s_b.detach() / 0.05, 3)
    torch.testing.assert_close(s_a.grad, ((s_a.detach() / 0.1).softmax(dim=1) - codes) / 0.1 / 3 / 2)


@pytest.mark.parametrize(("field", "value"), [("prototypes", 0), ("sharpness", 0.0), ("iterations", 0)])
def test_options_of_0_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is 0"):
        SwAV(**{field: value})
