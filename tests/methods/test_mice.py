import math

import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.inputs import Overview
from fedmcc.methods.mice import MiCE, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.heads import simplex
from fedmcc.networks.initialise import initialise

K, D = 3, 4
OVERVIEW = Overview(lambda: iter(()), 1, 10, seed=0)


def _built(**options):
    encoder, method = ConvNetOptions(width=2).build(1, 8), MiCE(projections=D, queue=7, **options)
    net, (stage,) = method.build(encoder, encoder.features, K), method.stages()
    initialise(net, torch.Generator().manual_seed(0))
    net.notes = stage.first_notes(net, 6)
    return net.double().eval(), stage


def _unit_parts(branch, images):
    return F.normalize(branch.instance(branch.encoder(images)).reshape(len(images), K, D), dim=2)


@torch.no_grad()
def test_the_loss_is_that_of_a_loop_over_experts_and_queue():
    net, stage = _built(temperature=0.7, gate_temperature=0.5)
    views, total = torch.rand(3, 5, 1, 8, 8, dtype=torch.float64), 0.0
    f, v = _unit_parts(net.online, views[0]), _unit_parts(net.target, views[1])
    gate = net.online.cluster_projector
    g = F.normalize(gate.linear(net.online.encoder(views[2])), dim=1)
    mu, queue = F.normalize(net.vectors.weight, dim=1), net.queue.reshape(7, K, D)
    for i in range(5):
        pi = [math.exp(float(g[i] @ gate.corners[k]) / 0.5) for k in range(K)]
        likelihood = 0.0
        for k in range(K):
            keys = [v[i, k], *queue[:, k]]
            scores = [math.exp(float(key @ (f[i, k] + mu[k])) / 0.7) for key in keys]
            likelihood += pi[k] / sum(pi) * scores[0] / sum(scores)
        total -= math.log(likelihood) / 5
    assert stage.loss(stage.represent(net, *views)).item() == pytest.approx(total)


def test_the_published_bound_has_the_same_value_and_gradient():
    """The bound is E[log pi Phi - log posterior] under the posterior, through which the gradient passes."""
    draw = torch.Generator().manual_seed(0)
    gate, expert = torch.randn(2, 6, K, generator=draw, dtype=torch.float64).requires_grad_()
    _, stage = _built()
    loss = stage.loss(Outputs(gate.log_softmax(dim=1), expert, torch.zeros(6, K, D)))
    joint = gate.log_softmax(dim=1) + expert
    posterior = joint.exp() / joint.exp().sum(dim=1, keepdim=True)
    bound = -(posterior * (joint - posterior.log())).sum(dim=1).mean()
    torch.testing.assert_close(loss, bound)
    expected = torch.autograd.grad(bound, (gate, expert), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, (gate, expert)), expected)


@pytest.mark.parametrize(("count", "width"), [(2, 2), (10, 10), (10, 64)])
def test_the_gates_directions_are_the_corners_of_a_simplex(count, width):
    corners = simplex(count, width).double()
    expected = torch.full((count, count), -1 / (count - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(corners @ corners.T, expected, rtol=0, atol=1e-6)


def test_prototypes_become_the_mean_of_the_images_that_their_expert_won():
    net, stage = _built()
    key = F.normalize(torch.randn(4, K, D, dtype=torch.float64), dim=2)
    gate = torch.tensor([[0.0, -5, -9], [-5, 0, -9], [0, -5, -9], [-1, -5, -9]], dtype=torch.float64)
    before = net.vectors.weight.clone()
    stage.after_step(net, Outputs(gate, torch.zeros_like(gate), key))
    with torch.no_grad():
        stage.prepare(net, OVERVIEW)
    first = F.normalize(key[0, 0] + key[2, 0] + key[3, 0], dim=0)
    torch.testing.assert_close(
        net.vectors.weight, torch.stack([first, key[1, 1], before[2]]), rtol=0, atol=1e-6
    )
    assert not net.notes["sums"].any()
    with torch.no_grad():
        stage.prepare(net, OVERVIEW)  # without images nothing changes
    torch.testing.assert_close(net.vectors.weight[0], first, rtol=0, atol=1e-6)


def test_every_entry_of_the_queue_has_a_unit_vector_for_each_expert():
    net, stage = _built()
    outputs = stage.represent(net, *torch.rand(3, 5, 1, 8, 8, dtype=torch.float64))
    stage.after_step(net, outputs)
    queue = net.queue.reshape(7, K, D)
    torch.testing.assert_close(queue[:5], outputs.key)
    torch.testing.assert_close(queue.norm(dim=2), torch.ones(7, K, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("field", "value"), [("temperature", 0.0), ("queue", 0), ("momentum", 1.5)])
def test_invalid_options_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"method\.{field} is {value}"):
        MiCE(**{field: value})
