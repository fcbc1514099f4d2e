"""CC's cluster loss on a frozen encoder: the loss in loops, gradients of both views, nothing else trained."""

import math

import pytest
import torch

from fedmcc.methods.cc_clustering import CCClustering, Outputs
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.fedu import FedU
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.training.loop import trainable

N, K = 6, 3


def _assignments(seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(N, K, dtype=torch.float64, generator=draw).softmax(dim=1)


def _entropy(y):
    sizes = (y.sum(dim=0) / y.sum()).tolist()
    return -sum(p * math.log(p) for p in sizes)


@pytest.mark.parametrize("positive", [False, True])
def test_loss_is_nt_xent_of_the_columns_minus_both_entropies(positive):
    y_a, y_b = _assignments(0), _assignments(1)
    columns, total = [*y_a.T, *y_b.T], 0.0
    cos = torch.nn.functional.cosine_similarity
    for i, anchor in enumerate(columns):
        partner = (i + K) % (2 * K)
        terms = {j: math.exp(cos(anchor, c, dim=0) / 0.7) for j, c in enumerate(columns) if j != i}
        total -= math.log(terms[partner] / (sum(terms.values()) - (not positive) * terms[partner]))
    (stage,) = CCClustering(temperature=0.7, entropy_weight=2.0, positive_in_denominator=positive).stages()
    expected = total / (2 * K) - 2.0 * (_entropy(y_a) + _entropy(y_b))
    assert stage.loss(Outputs(y_a, y_b)).item() == pytest.approx(expected, abs=1e-9)


def test_only_the_head_is_trained_by_both_views_without_a_target():
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = FedU(hidden=8, projections=4).build(encoder, encoder.features, K)
    method = CCClustering(hidden=8)
    method.extend(net, encoder.features, K)
    (stage,) = method.stages()
    parameters = trainable(net, stage)
    outputs = stage.represent(net, torch.rand(N, 1, 8, 8), torch.rand(N, 1, 8, 8))
    for output in outputs:
        assert output.requires_grad
    stage.loss(outputs).backward()
    assert all(parameter.grad is not None for parameter in parameters)
    assert all(parameter.grad is None for parameter in net.online.encoder.parameters())
    assert stage.trained == stage.shared == (HEAD,)
