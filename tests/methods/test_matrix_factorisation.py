"""Federated matrix factorisation: the objective falls, the partition does not matter, H stays at home."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD, VECTORS
from fedmcc.methods.matrix_factorisation import PENALTIES, Factorisation, MatrixFactorisation
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import detached, select

K, D = 4, 6
METHOD = MatrixFactorisation(rounds=6, smallest=1)


def _points(n=120, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % K
    points = 5 * draw.uniform(size=(K, D))[labels] + 0.2 * draw.normal(size=(n, D))
    return torch.from_numpy(points).float(), labels


def _nets(shards, method=METHOD):
    """A network for each client: they differ in their notes only."""
    nets = [Network(Branch(nn.Flatten())) for _ in shards]
    torch.manual_seed(0)
    method.extend(nets[0], D, K)
    for net in nets[1:]:
        method.extend(net, D, K)
        net.load_state_dict(nets[0].state_dict())
    return nets


def _round(nets, stage, shards):
    model = detached(nets[0].state_dict())
    updates = []
    for client, (net, points) in enumerate(zip(nets, shards, strict=True)):
        net.notes = net.notes or stage.first_notes(net, len(points))
        extras, shared = stage.extras(net, points.split(16)), select(model, stage.shared)
        updates.append(Update(client, stage.name, 1, len(points), None, shared, extras))
        assert stage.extras_error(updates[-1]) == ""
    combined = stage.combine(updates, model).weights
    for net in nets:
        net.load_state_dict({**model, **combined})
    return updates


def _objective(net, points):
    """½ |X - W H|² + ½ ρ Σ((1ᵀh)² - |h|²) + ½ ν |H|², image by image."""
    state = net.state_dict()
    vectors, (rho, nu) = state[VECTORS].double(), state[PENALTIES].tolist()
    total = 0.0
    for x, h in zip(points.double(), net.notes["h"], strict=True):
        rest = x - sum(h[k] * vectors[k] for k in range(K))
        crossed = sum(float(h[i] * h[j]) for i in range(K) for j in range(K) if i != j)
        total += 0.5 * float(rest @ rest) + 0.5 * rho * crossed + 0.5 * nu * float(h @ h)
    return total


def _fit(shards, method=METHOD):
    nets = _nets(shards, method)
    first, stage = method.stages()
    _round(nets, first, shards)
    objectives = []
    for net in nets:
        net.notes = {}
    for _ in range(stage.rounds):
        _round(nets, stage, shards)
        objectives.append(sum(_objective(net, points) for net, points in zip(nets, shards, strict=True)))
    return nets, objectives


def test_the_objective_never_rises_and_the_clusters_are_found():
    points, labels = _points()
    (net,), objectives = _fit([points])
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(objectives))
    assert objectives[-1] < 0.999 * objectives[0]
    assigned = net.online.assign(points)
    assert accuracy(labels, assigned.argmax(dim=1).numpy()) > 0.95
    torch.testing.assert_close(assigned.sum(dim=1), torch.ones(len(points)))


def test_from_the_same_factors_five_clients_are_one():
    points, _ = _points()
    start, stage, results = _fit([points])[0][0].state_dict(), METHOD.stages()[1], []
    for shards in ([points], points.split([3, 50, 7, 20, 40])):
        nets = _nets(shards)
        for net in nets:
            net.load_state_dict(start)
        for _ in range(3):
            _round(nets, stage, shards)
        results.append(nets[0].state_dict()[VECTORS])
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_a_step_of_the_server_is_the_gradient_of_the_squared_error():
    points, _ = _points(40)
    (net,), _ = _fit([points])
    before = net.state_dict()[VECTORS].double().requires_grad_()
    stage = replace(METHOD.stages()[1], server_steps=1)
    (update,) = _round([net], stage, [points])
    h = net.notes["h"]
    (0.5 * (points.double() - h @ before).square().sum()).backward()
    rate = 1 / np.linalg.eigvalsh((h.T @ h).numpy())[-1]
    expected = before.detach() - rate * before.grad
    torch.testing.assert_close(net.state_dict()[VECTORS].double(), expected, rtol=1e-5, atol=1e-6)
    assert {name: tuple(value.shape) for name, value in update.extras.items()} == {
        "hh": (K, K),
        "hx": (K, D),
        "shares": (K,),
    }


def test_a_factor_that_few_images_use_is_left_out():
    points, _ = _points(40)
    (net,), _ = _fit([points])
    used = (net.notes["h"] > 0).sum(dim=0)
    most = int(used.max())
    stage = Factorisation(rounds=1, server_steps=1, smallest=most + 1)
    extras = stage.extras(net, points.split(16))
    assert not extras["hx"].any()
    assert (net.notes["h"] > 0).any()  # the client's own combinations stay


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hh", lambda value: -value),
        ("hh", lambda value: value + 100 * torch.eye(K).flip(0)),
        ("hx", lambda value: value + 1e9),
        ("shares", lambda value: value + 1000),
    ],
)
def test_sums_that_no_images_give_are_refused(name, change):
    points, _ = _points(40)
    (net,), _ = _fit([points])
    (update,) = _round([net], METHOD.stages()[1], [points])
    extras = {**update.extras, name: change(update.extras[name])}
    sentence = METHOD.stages()[1].extras_error(replace(update, extras=extras))
    assert sentence == "Its sums are not those of non-negative combinations of its images."


def test_an_image_without_any_factor_belongs_to_all_clusters_equally():
    (net,), _ = _fit([_points(40)[0]])
    assert net.online.assign(torch.zeros(1, D)).tolist() == [[1 / K] * K]
    assert net.state_dict()[f"{HEAD}.marginal"].sum().item() == pytest.approx(1.0)


def test_options_of_0_are_refused_by_name():
    with pytest.raises(InputError, match=r"clustering\.sparsity is 0"):
        MatrixFactorisation(sparsity=0.0)
