"""FedMCC+'s polish: self-training under the cluster sizes of all clients."""

import numpy as np
import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.messages import Task, Update
from fedmcc.methods.federated_kmeans import HEAD
from fedmcc.methods.fedmcc_plus import FedMCCPlus, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.states import detached, select


def _polish(**changes):
    method = FedMCCPlus(**changes)
    encoder = ConvNetOptions(width=2).build(1, 8)
    net = method.build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[-1]


def _receive(net, stage, samples, everyone):
    net.online.cluster_projector.samples.fill_(everyone)
    shared = detached(select(net.state_dict(), stage.shared))
    stage.receive(net, Task(0, stage.name, 1, shared), {"samples": torch.tensor(samples)})


def _outputs(y, rest, share):
    """The same assignments from both views and both networks."""
    n = len(y)
    return Outputs(y, y, y.detach(), y.detach(), rest.expand(n, -1), torch.tensor([share]).expand(n, 1))


def test_the_loss_is_cross_entropy_to_sharpened_targets_minus_the_entropy_of_all_sizes():
    _, stage = _polish(entropy_weight=1.5)
    y = torch.rand(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(dim=1)
    rest, share = torch.tensor([0.1, 0.2, 0.3, 0.1], dtype=torch.float64), 0.3
    p = y.numpy()
    sizes = rest.numpy() + share * p.mean(axis=0)
    q = p**2 / sizes
    q /= q.sum(axis=1, keepdims=True)
    expected = -(q * np.log(p)).sum(axis=1).mean() + 1.5 * (sizes * np.log(sizes)).sum() / share
    assert float(stage.loss(_outputs(y, rest, share))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("others", "pushed"), [([0.0, 0.5], False), ([0.25, 0.25], True)])
def test_a_client_of_one_cluster_is_pushed_into_another_only_if_all_clients_lack_it(others, pushed):
    """Two clients, a cluster each, are balanced together: the entropy asks nothing of either (D21)."""
    y = torch.tensor([[0.999, 0.001]] * 4, dtype=torch.float64, requires_grad=True)
    outputs = _outputs(y, torch.tensor(others, dtype=torch.float64), 0.5)
    with_entropy, without = (_polish(entropy_weight=weight)[1].loss(outputs) for weight in (1.0, 0.0))
    (slope,) = torch.autograd.grad(with_entropy - without, y)
    assert bool((slope[:, 0] - slope[:, 1]).abs().max() > 0.1) == pushed


def test_the_rest_is_what_the_other_clients_added_to_the_global_sizes():
    net, stage = _polish()
    _receive(net, stage, samples=30, everyone=100)
    marginal = torch.tensor([0.4, 0.3, 0.2, 0.1])
    torch.testing.assert_close(net.rest(marginal), 0.7 * marginal)  # nothing sent yet: its share of all
    net.own.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(net.rest(marginal), torch.tensor([0.1, 0.3, 0.2, 0.1]))


def test_a_client_alone_has_no_rest():
    net, stage = _polish()
    _receive(net, stage, samples=50, everyone=50)
    assert float(net.share) == 1.0
    assert not net.rest(torch.full((4,), 0.25)).any()


def test_the_server_puts_the_sizes_of_all_clients_into_the_head():
    net, stage = _polish()
    shared = detached(select(net.state_dict(), stage.shared))
    means = [torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0, 0.5, 0.5])]
    updates = [
        Update(client, stage.name, 1, samples, 0.0, shared, {"mean": mean})
        for client, samples, mean in zip((0, 1), (30, 10), means, strict=True)
    ]
    weights, _ = stage.combine(updates)
    torch.testing.assert_close(weights[f"{HEAD}.marginal"], torch.tensor([0.75, 0, 0.125, 0.125]))
    assert int(weights[f"{HEAD}.samples"]) == 40


def test_the_target_cannot_be_shared_and_the_polish_can_be_left_out():
    with pytest.raises(InputError, match="target"):
        FedMCCPlus(target="share")
    assert [stage.name for stage in FedMCCPlus(polish_rounds=0).stages()][-1] == "centroids"
