import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.heads import cluster_projector, instance_projector
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, MomentumPair, Network
from fedmcc.networks.resnet import ResNet18


def branch(clusters: int | None = 5) -> Branch:
    encoder = ConvNetOptions(width=2).build(1, 8)
    head = None if clusters is None else cluster_projector(16, 12, clusters)
    return Branch(encoder, instance_projector(16, 12, 6), head)


def pair() -> MomentumPair:
    network = MomentumPair(branch())
    initialise(network, torch.Generator().manual_seed(0))
    return network


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return list(states[0]) == list(states[1]) and all(
        torch.equal(*both) for both in zip(*(state.values() for state in states), strict=True)
    )


def train_online(network: MomentumPair) -> None:
    """Take a training step that changes parameters and buffers of the online branch."""
    optimiser = torch.optim.SGD(network.online.parameters(), lr=1.0)
    projector = network.online.cluster_projector
    projector(network.online.encoder(torch.rand(8, 1, 8, 8))).square().sum().backward()
    optimiser.step()


def test_projectors_are_two_linear_layers_with_a_relu_between() -> None:
    kinds = [type(layer) for layer in cluster_projector(4, 5, 3)]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.Softmax]
    assert [type(layer) for layer in instance_projector(4, 5, 3)] == kinds[:3]


def test_projectors_equal_their_formula() -> None:
    features = torch.randn(7, 4)
    projector = cluster_projector(4, 5, 3)
    hidden = (features @ projector[0].weight.T + projector[0].bias).clamp(min=0)
    scores = (hidden @ projector[2].weight.T + projector[2].bias).exp()
    torch.testing.assert_close(projector(features), scores / scores.sum(dim=1, keepdim=True))


def test_target_starts_as_a_copy_without_gradients() -> None:
    network = pair()
    assert same(network.online, network.target)
    assert all(parameter.requires_grad for parameter in network.online.parameters())
    assert not any(parameter.requires_grad for parameter in network.target.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.99, 1.0])
def test_update_is_the_moving_average_of_parameters(momentum: float) -> None:
    network = pair()
    train_online(network)
    before = [parameter.clone() for parameter in network.target.parameters()]
    network.update(momentum)
    for old, online, new in zip(
        before, network.online.parameters(), network.target.parameters(), strict=True
    ):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * online.detach())


def test_update_does_not_change_the_statistics_of_the_target() -> None:
    network = pair()
    before = copy.deepcopy(dict(network.target.named_buffers()))
    train_online(network)
    network.update(0.5)
    assert all(torch.equal(value, before[key]) for key, value in network.target.named_buffers())
    assert not same(network.online.encoder, network.target.encoder)


def test_update_does_not_change_the_online_branch_and_leaves_no_graph() -> None:
    network = pair()
    before = copy.deepcopy(network.online)
    network.update(0.5)
    assert same(network.online, before)
    assert all(
        parameter.grad_fn is None and parameter.grad is None for parameter in network.target.parameters()
    )


def test_reset_target_copies_parameters_and_buffers() -> None:
    network = pair()
    train_online(network)
    assert not same(network.online, network.target)
    network.reset_target()
    assert same(network.online, network.target)
    assert not any(parameter.requires_grad for parameter in network.target.parameters())


def test_target_updates_its_own_statistics_in_train_mode() -> None:
    network = pair().train()
    network.target.encoder(torch.rand(8, 1, 8, 8))
    assert all(module.training for module in network.target.modules())
    assert not same(network.online.encoder, network.target.encoder)


def test_initialise_gives_the_same_bits_whatever_the_global_generator() -> None:
    networks = []
    for _ in range(2):
        networks.append(pair())
        torch.rand(3)  # advances the global generator, from which constructors draw
    assert same(*networks)


def test_initialise_does_not_use_the_global_generator() -> None:
    network = branch()
    before = torch.get_rng_state()
    initialise(network, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_initialise_depends_on_its_generator() -> None:
    networks = [branch(), branch()]
    for seed, network in enumerate(networks):
        initialise(network, torch.Generator().manual_seed(seed))
    pairs = zip(*(network.parameters() for network in networks), strict=True)
    assert any(not torch.equal(*both) for both in pairs)


def test_initialise_resets_a_trained_network() -> None:
    network = pair()
    train_online(network)
    initialise(network, torch.Generator().manual_seed(0))
    assert same(network, pair())


def test_encoder_starts_alike_with_and_without_projectors_and_target() -> None:
    alone = Network(branch(clusters=None))
    initialise(alone, torch.Generator().manual_seed(0))
    assert same(alone.online.encoder, pair().online.encoder)


def test_initial_weights_have_the_spread_of_their_distribution() -> None:
    layers = nn.Sequential(nn.Conv2d(32, 64, 3), nn.Linear(400, 500), nn.GroupNorm(2, 8))
    initialise(layers, torch.Generator().manual_seed(0))
    conv, linear, norm = layers
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert conv.bias.abs().max() == 0
    assert linear.weight.abs().max().item() == pytest.approx(400**-0.5, rel=1e-3)
    assert linear.weight.std().item() == pytest.approx(400**-0.5 / 3**0.5, rel=0.01)
    assert norm.weight.min() == norm.weight.max() == 1


def test_initialise_refuses_a_module_it_has_no_rule_for() -> None:
    with pytest.raises(TypeError, match="no rule for Embedding"):
        initialise(nn.Embedding(2, 3), torch.Generator())


def test_initialise_keeps_pretrained_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(ResNet18().build(1, 32).state_dict(), path)
    network = MomentumPair(Branch(ResNet18(weights=path).build(1, 32), instance_projector(512, 8, 4)))
    before = copy.deepcopy(network)
    initialise(network, torch.Generator().manual_seed(0))
    assert same(network.online.encoder, before.online.encoder)
    assert not same(network.online.instance_projector, before.online.instance_projector)
