"""First weights from a given generator, so that no global one matters."""

import math

import torch
from torch import Tensor, nn

from fedmcc.networks.momentum import MomentumPair

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Overwrite every parameter but a pretrained encoder's, module by module in their order of creation.

    A target branch becomes a copy of the online one, so a pair and a single branch start alike.
    """
    if isinstance(network, MomentumPair):
        for name, child in network.named_children():
            if name != "target":
                initialise(child, generator)
        network.reset_target()
    elif not getattr(network, "pretrained", False):
        _initialise_own(network, generator)
        for child in network.children():
            initialise(child, generator)


@torch.no_grad()
def _initialise_own(module: nn.Module, generator: torch.Generator) -> None:
    if isinstance(module, nn.Conv2d):
        _draw_normal(module.weight, generator)
        if module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.Linear):
        for parameter in module.parameters(recurse=False):
            _draw_uniform(parameter, 1 / math.sqrt(module.in_features), generator)
    elif isinstance(module, NORMS):
        module.reset_parameters()  # ones, zeros and fresh statistics: nothing random
    elif next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"initialise() has no rule for {type(module).__name__}: add one.")


def _draw_normal(weight: Tensor, generator: torch.Generator) -> None:
    """He et al.'s normal, scaled to keep the variance of gradients through a ReLU."""
    drawn = torch.empty(weight.shape)  # on the CPU, where the generator lives, whatever the device
    nn.init.kaiming_normal_(drawn, mode="fan_out", nonlinearity="relu", generator=generator)
    weight.copy_(drawn)


def _draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """PyTorch's own default for linear layers, weight and bias alike."""
    parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
