"""Self-training (the stages polish and choice), and its reversal without labels."""

import numpy as np
import pytest
import torch

from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.fedmcc_plus import FedMCCPlus
from fedmcc.methods.self_training import Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select


def _setup(**changes):
    method = FedMCCPlus(polish_rounds=3, **changes)
    encoder = ConvNetOptions(width=2).build(1, 8)
    net = method.build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    *_, polish, choice = method.stages()
    return net, polish, choice


def _outputs(y, sizes):
    """Identical assignments for both views and both networks."""
    return Outputs(y, y, y.detach(), y.detach(), sizes.expand(len(y), -1))


def test_the_loss_is_cross_entropy_to_sharpened_targets_and_the_slope_of_the_global_entropy():
    _, polish, _ = _setup(entropy_weight=1.5)
    y = torch.rand(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(dim=1)
    sizes = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    p, f = y.numpy(), sizes.numpy()
    q = p**2 / f
    q /= q.sum(axis=1, keepdims=True)
    expected = -(q * np.log(p)).sum(axis=1).mean() + 1.5 * (p.mean(axis=0) * np.log(f)).sum()
    assert float(polish.loss(_outputs(y, sizes))) == pytest.approx(expected)


def test_the_entropy_term_has_the_gradient_of_all_clients_entropy():
    """d(-H)/dy at the global sizes, by autograd through the entropy of pooled assignments."""
    _, with_entropy, _ = _setup(entropy_weight=1.0)
    _, without, _ = _setup(entropy_weight=0.0)
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    others = torch.rand(15, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(dim=1)
    logits.requires_grad_()
    pooled = torch.cat([logits.softmax(dim=1), others]).mean(dim=0)
    negative = (pooled * pooled.log()).sum()
    (expected,) = torch.autograd.grad(negative, logits)
    outputs = _outputs(logits.softmax(dim=1), pooled.detach())
    (gradient,) = torch.autograd.grad(with_entropy.loss(outputs) - without.loss(outputs), logits)
    torch.testing.assert_close(gradient * 5 / 20, expected)  # this client holds a quarter of the images


def test_the_average_puts_all_clients_cluster_sizes_into_the_head():
    net, polish, _ = _setup()
    model = detached(net.state_dict())
    images = torch.rand(3, 12, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    updates = []
    for client, count in enumerate((12, 4)):
        polish.extras(net, [images[client, :count]])
        shared = detached(select(net.state_dict(), polish.shared))
        updates.append(Update(client, polish.name, 1, count, 0.0, shared))
    weights, _ = polish.combine(updates, model)
    net.eval()
    with torch.no_grad():
        everyone = torch.cat([images[0], images[1, :4]])
        mean = net.online.assign(net.online.encoder(everyone)).mean(dim=0)
    torch.testing.assert_close(weights[f"{HEAD}.marginal"], mean, atol=1e-5, rtol=0)


@pytest.mark.parametrize("round", [1, 2])
def test_only_the_first_round_saves_the_initial_model(round):
    net, polish, _ = _setup()
    model = detached(net.state_dict())
    shared = {name: value + 1 for name, value in select(model, polish.shared).items()}
    weights, _ = polish.combine([Update(0, polish.name, round, 5, 0.0, shared)], model)
    kept = {name: value for name, value in weights.items() if name.startswith("kept.")}
    assert bool(kept) == (round == 1)
    for name, value in kept.items():
        assert torch.equal(value, model[name.replace("kept.", "online.", 1)])


def _choose(before, after, clusters=4):
    """Combine equal reports of two clients: sizes and mean entropy before and after self-training."""
    net, _, choice = _setup()
    sizes = torch.tensor([before[0], after[0]], dtype=torch.float64)
    entropy = torch.tensor([before[1], after[1]], dtype=torch.float64)
    extras = {"sizes": sizes, "doubt": entropy}
    model = detached(net.state_dict())
    shared = select(model, choice.shared)
    updates = [Update(client, choice.name, 1, 10, None, shared, extras) for client in (0, 1)]
    assert choice.extras_error(updates[0]) == ""
    model["kept.encoder.stages.0.0.weight"] = model["kept.encoder.stages.0.0.weight"] + 1
    return model, choice.combine(updates, model).weights


EVEN, ONE_EMPTY = [0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0]


@pytest.mark.parametrize(
    ("before", "after", "undone"),
    [
        ((EVEN, 0.3), (EVEN, 0.2), False),  # more certain
        ((EVEN, 0.2), (EVEN, 0.3), True),  # less certain
        ((EVEN, 0.2), (ONE_EMPTY, 0.1), True),  # more certain, but a cluster is empty
        ((EVEN, 0.2), (EVEN, 0.2), True),  # no change
    ],
)
def test_self_training_is_undone_unless_mutual_information_increases(before, after, undone):
    model, weights = _choose(before, after)
    assert bool(weights) == undone
    for name, value in weights.items():
        assert torch.equal(value, model[name.replace("online.", "kept.", 1)])


def test_clients_measure_both_networks_on_their_own_images():
    net, _, choice = _setup()
    with torch.no_grad():
        for parameter in net.kept.parameters():
            parameter.add_(0.3)
    images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    extras = choice.extras(net, images.split(4))
    net.eval()
    for row, branch in enumerate((net.kept, net.online)):
        with torch.no_grad():
            y = branch.assign(branch.encoder(images)).double().numpy()
        np.testing.assert_allclose(extras["sizes"][row], y.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(extras["doubt"][row], -(y * np.log(y)).sum(axis=1).mean(), atol=1e-5)
