import math

import pytest
import torch

from fedmcc.messages import Task
from fedmcc.methods.mcc import MCC, Outputs
from fedmcc.networks.convnet import ConvNetOptions

N, D, M = 5, 3, 4


def _outputs(seed=0):
    draw = torch.Generator().manual_seed(seed)
    z = [torch.randn(N, D, dtype=torch.float64, generator=draw) for _ in range(4)]
    y = [torch.randn(N, M, dtype=torch.float64, generator=draw).softmax(dim=1) for _ in range(4)]
    return Outputs(*z, *y)


def _stage(**fields):
    (stage,) = MCC(**fields).stages()
    return stage


def _net(norm="group", **fields):
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        encoder = ConvNetOptions(width=4, norm=norm).build(1, 8)
        return MCC(projections=6, **fields).build(encoder, encoder.features, clusters=3)


def _contrast(u, v, tau, positive):
    """L(u, v; tau) of the paper in loops over cosines; `positive` puts the pair in the denominator."""
    cos = torch.nn.functional.cosine_similarity
    total = 0.0
    for i in range(len(u)):
        same = math.exp(cos(u[i], v[i], dim=0) / tau)
        terms = [math.exp(cos(u[i], x[j], dim=0) / tau) for x in (u, v) for j in range(len(u)) if j != i]
        total -= math.log(same / (sum(terms) + positive * same))
    return total / len(u)


def _entropy(y):
    sizes = (y.sum(dim=0) / y.sum()).tolist()
    return -sum(p * math.log(p) for p in sizes)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("anchor", ["paper", "online"])
def test_loss_is_that_of_the_paper_term_by_term(anchor, positive):
    o = _outputs()
    expected = -_entropy(o.y_a) - _entropy(o.y_b)  # D2, and no entropies of the target (D7)
    for kind, tau in (("z", 0.4), ("y", 0.8)):
        quartet = [getattr(o, f"{kind}_{name}") for name in ("a", "b", "a_target", "b_target")]
        a, b, a_target, b_target = quartet if kind == "z" else [y.T for y in quartet]
        second = (a_target, b) if anchor == "paper" else (b, a_target)
        expected += 0.5 * (_contrast(a, b_target, tau, positive) + _contrast(*second, tau, positive))
    fields = {"anchor": anchor, "positive_in_denominator": positive}
    stage = _stage(instance_temperature=0.4, cluster_temperature=0.8, **fields)
    assert stage.loss(o).item() == pytest.approx(expected, abs=1e-9)


def test_the_entropy_of_the_target_is_not_in_the_loss():
    o = _outputs()
    difference = _stage(entropy_weight=0.0).loss(o) - _stage(entropy_weight=2.0).loss(o)
    assert difference.item() == pytest.approx(2 * (_entropy(o.y_a) + _entropy(o.y_b)), abs=1e-9)


def test_balanced_clusters_are_preferred_to_a_single_one():
    z = torch.eye(4, dtype=torch.float64)
    balanced = torch.eye(4, dtype=torch.float64) * 0.96 + 0.01
    collapsed = balanced[[0, 0, 0, 0]]
    low, high = (_stage().loss(Outputs(z, z, z, z, y, y, y, y)) for y in (balanced, collapsed))
    assert low < high


def test_no_gradient_reaches_the_target():
    net, stage = _net(), _stage()
    net.requires_grad_(True)
    stage.loss(stage.represent(net, torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))).backward()
    assert all(parameter.grad is None for parameter in net.target.parameters())
    assert all(parameter.grad is not None for parameter in net.online.parameters())


def test_target_outputs_are_the_targets_and_views_are_not_mixed_up():
    net, stage = _net(), _stage()
    net.target.load_state_dict({name: value * 0.5 for name, value in net.target.state_dict().items()})
    a, b = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    outputs = stage.represent(net, a, b)
    passes = (
        (net.online, a, "a"),
        (net.online, b, "b"),
        (net.target, a, "a_target"),
        (net.target, b, "b_target"),
    )
    for branch, view, name in passes:
        h = branch.encoder(view)
        torch.testing.assert_close(getattr(outputs, f"z_{name}"), branch.instance_projector(h))
        torch.testing.assert_close(getattr(outputs, f"y_{name}"), branch.cluster_projector(h))


def test_after_a_step_the_target_is_the_moving_average_of_the_parameters():
    net, stage = _net("batch"), _stage(momentum=0.9)
    with torch.no_grad():
        for parameter in net.online.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    old = [parameter.detach().clone().double() for parameter in net.target.parameters()]
    buffers = [buffer.clone() for buffer in net.target.buffers()]
    stage.after_step(net, None)
    pairs = zip(old, net.online.parameters(), net.target.parameters(), strict=True)
    for before, online, after in pairs:
        torch.testing.assert_close(after.double(), 0.9 * before + 0.1 * online.double(), rtol=0, atol=1e-6)
    assert all(torch.equal(x, y) for x, y in zip(buffers, net.target.buffers(), strict=True))


@pytest.mark.parametrize(("target", "follows"), [("keep", False), ("reset", True), ("share", False)])
def test_target_is_copied_in_the_first_round_then_kept_reset_or_shared(target, follows):
    net, stage, memory = _net(), _stage(target=target), {}
    sent = {name: torch.full_like(value, 3.0) for name, value in net.state_dict().items()}
    online = {name: value for name, value in sent.items() if name.startswith("online.")}
    weights = sent if target == "share" else online
    stage.receive(net, Task(0, "joint", 1, weights), memory)
    assert all((value == 3.0).all() for value in net.state_dict().values())
    again = {name: value + 1 for name, value in online.items()}
    stage.receive(net, Task(0, "joint", 2, again), memory)
    assert all((value == 4.0).all() for value in net.online.state_dict().values())
    assert all((value == (4.0 if follows else 3.0)).all() for value in net.target.state_dict().values())


def test_the_target_is_sent_only_if_it_is_shared():
    assert _stage(target="share").shared == ("online", "target")
    assert _stage(target="keep").shared == _stage(target="reset").shared == ("online",)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 5), slice(1, 6, 2)])
def test_rows_depend_on_their_own_image_alone(rows):
    net, stage = _net("group"), _stage()
    a, b = torch.rand(2, 6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    whole, part = stage.represent(net, a, b), stage.represent(net, a[rows], b[rows])
    for name in Outputs._fields:
        torch.testing.assert_close(getattr(part, name), getattr(whole, name)[rows], rtol=1e-5, atol=1e-6)


def test_mse_is_half_the_squared_distances_of_unit_vectors_of_both_pairs_of_views():
    o = _outputs()
    expected = -_entropy(o.y_a) - _entropy(o.y_b)
    for kind in ("z", "y"):
        rows = [getattr(o, f"{kind}_{name}") for name in ("a", "b", "a_target", "b_target")]
        a, b, a_target, b_target = rows if kind == "z" else [y.T for y in rows]
        for online, target in ((a, b_target), (b, a_target)):
            for u, v in zip(online, target, strict=True):
                expected += 0.5 * float((u / u.norm() - v / v.norm()).square().sum()) / len(online)
    assert _stage(loss="mse").loss(o).item() == pytest.approx(expected, abs=1e-9)


def test_without_predictor_constant_projections_are_the_smallest_mse():
    o = _outputs()
    constant = o._replace(**{name: torch.ones(N, D).double() for name in o._fields if name[0] == "z"})
    columns = o._replace(**{name: torch.eye(N).double() for name in o._fields if name[0] == "z"})
    losses = [_stage(loss="mse").loss(outputs).item() for outputs in (constant, columns)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)  # nothing prefers distinct images
    assert _stage().loss(columns).item() < _stage().loss(constant).item() - 1  # the contrast does


def test_the_predictor_is_trained_shared_and_applied_to_online_projections_only():
    net, stage = _net(predictor=True), _stage(predictor=True, projections=6)
    assert stage.trained == stage.shared == ("online", "predictor")
    net.eval()
    a, b = torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8)
    outputs = stage.represent(net, a, b)
    z = net.online.instance(net.online.encoder(a))
    torch.testing.assert_close(outputs.z_a, net.predictor(z))
    torch.testing.assert_close(outputs.z_a_target, z)  # the target starts as a copy
