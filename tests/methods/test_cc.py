import math

import pytest
import torch

from fedmcc.methods.cc import CC, Outputs
from fedmcc.networks.convnet import ConvNetOptions

N, D, M = 5, 3, 4


def _outputs(seed=0):
    draw = torch.Generator().manual_seed(seed)
    z = [torch.randn(N, D, dtype=torch.float64, generator=draw) for _ in range(2)]
    y = [torch.randn(N, M, dtype=torch.float64, generator=draw).softmax(dim=1) for _ in range(2)]
    return Outputs(*z, *y)


def _loss(outputs, **fields):
    (stage,) = CC(**fields).stages()
    return stage.loss(outputs).item()


def _s(u, v):
    dot = sum(x * y for x, y in zip(u, v, strict=True))
    return dot / math.sqrt(sum(x * x for x in u)) / math.sqrt(sum(x * x for x in v))


def _nt_xent(u, v, tau):
    """Mean over the 2n rows of the cross-entropy of identifying a row's partner among all other rows."""
    rows, n, total = [*u, *v], len(u), 0.0
    for i in range(2 * n):
        others = sum(math.exp(_s(rows[i], rows[j]) / tau) for j in range(2 * n) if j != i)
        total -= math.log(math.exp(_s(rows[i], rows[(i + n) % (2 * n)]) / tau) / others)
    return total / (2 * n)


def _printed(u, v, tau):
    """L(u, v; tau) of the paper, term by term."""
    n, total = len(u), 0.0
    for i in range(n):
        terms = [math.exp(_s(u[i], u[j]) / tau) + math.exp(_s(u[i], v[j]) / tau) for j in range(n) if j != i]
        total -= math.log(math.exp(_s(u[i], v[i]) / tau) / sum(terms))
    return total / n


def _entropy(y):
    sizes = [sum(row[k] for row in y) / len(y) for k in range(M)]
    return -sum(p * math.log(p) for p in sizes)


def _columns(y):
    return list(zip(*y, strict=True))


def test_loss_is_the_published_one_term_by_term():
    z_a, z_b, y_a, y_b = (x.tolist() for x in _outputs())
    expected = _nt_xent(z_a, z_b, 0.5) + _nt_xent(_columns(y_a), _columns(y_b), 1.0)
    expected -= _entropy(y_a) + _entropy(y_b)
    assert _loss(_outputs()) == pytest.approx(expected, abs=1e-9)


def test_three_fields_give_the_loss_as_the_paper_prints_it_with_entropies_maximised():
    z_a, z_b, y_a, y_b = (x.tolist() for x in _outputs(1))
    expected = 0.5 * (_printed(z_a, z_b, 0.4) + _printed(_columns(y_a), _columns(y_b), 0.9))
    expected -= _entropy(y_a) + _entropy(y_b)
    fields = {"anchors": "a", "positive_in_denominator": False, "contrast_weight": 0.5}
    loss = _loss(_outputs(1), instance_temperature=0.4, cluster_temperature=0.9, **fields)
    assert loss == pytest.approx(expected, abs=1e-9)


def test_entropy_weight_scales_the_entropies_alone():
    _, _, y_a, y_b = (x.tolist() for x in _outputs())
    without, thrice = _loss(_outputs(), entropy_weight=0.0), _loss(_outputs(), entropy_weight=3.0)
    assert without - thrice == pytest.approx(3 * (_entropy(y_a) + _entropy(y_b)), abs=1e-9)


def test_balanced_clusters_are_preferred_to_a_single_one():
    z = torch.eye(4, dtype=torch.float64)
    balanced = torch.eye(4, dtype=torch.float64) * 0.96 + 0.01
    collapsed = balanced[[0, 0, 0, 0]]
    assert _loss(Outputs(z, z, balanced, balanced)) < _loss(Outputs(z, z, collapsed, collapsed))


def test_order_of_views_and_of_images_does_not_matter():
    z_a, z_b, y_a, y_b = _outputs()
    shuffled = torch.tensor([3, 1, 4, 0, 2])
    assert _loss(Outputs(z_b, z_a, y_b, y_a)) == pytest.approx(_loss(_outputs()), abs=1e-12)
    assert _loss(Outputs(*(x[shuffled] for x in _outputs()))) == pytest.approx(_loss(_outputs()), abs=1e-12)


def test_soft_assignments_are_distributions_over_the_clusters():
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = CC(projections=7, hidden=5).build(encoder, encoder.features, clusters=6)
    (stage,) = CC().stages()
    outputs = stage.represent(net, torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8))
    assert (outputs.z_a.shape, outputs.y_b.shape) == ((3, 7), (3, 6))
    torch.testing.assert_close(outputs.y_a.sum(dim=1), torch.ones(3))
    assert net.online.instance_projector[0].weight.shape == (5, encoder.features)
