"""Initial weights drawn from a given generator, independent of the global one."""

import math

import torch
from torch import Tensor, nn

from fedmcc.networks.adapters import Adapter
from fedmcc.networks.momentum import MomentumPair

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw all parameters, module by module in order of creation, except those of a pretrained encoder.

    The target branch becomes a copy of the online branch, so that a pair and a single branch start alike.
    """
    if isinstance(network, MomentumPair):
        for name, child in network.named_children():
            if name != "target":
                initialise(child, generator)
        network.reset_target()
    elif isinstance(network, Adapter):
        _initialise_adapter(network, generator)
    elif not getattr(network, "pretrained", False):
        _initialise_module(network, generator)
        for child in network.children():
            initialise(child, generator)


@torch.no_grad()
def _initialise_module(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the parameters of a module itself, not those of its children."""
    if isinstance(module, nn.Conv2d):
        _draw_normal(module.weight, generator)
        if module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.Linear):
        for parameter in module.parameters(recurse=False):
            _draw_uniform(parameter, 1 / math.sqrt(module.in_features), generator)
    elif isinstance(module, NORMS):
        module.reset_parameters()  # deterministic: ones, zeros and initial statistics
    elif next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"initialise() has no rule for {type(module).__name__}: add one.")


@torch.no_grad()
def _initialise_adapter(adapter: Adapter, generator: torch.Generator) -> None:
    """Draw the factor down and set the factor up to zero: an adapter changes nothing before its training."""
    inputs = adapter.down.weight[0].numel()
    _draw_uniform(adapter.down.weight, 1 / math.sqrt(inputs), generator)
    adapter.up.weight.zero_()


def _draw_normal(weight: Tensor, generator: torch.Generator) -> None:
    """Draw from the normal distribution of He et al., which keeps the gradient variance through a ReLU."""
    drawn = torch.empty(weight.shape)  # on the CPU, like the generator, whatever the device of the weight
    nn.init.kaiming_normal_(drawn, mode="fan_out", nonlinearity="relu", generator=generator)
    weight.copy_(drawn)


def _draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """Draw from PyTorch's default distribution for the weight and bias of linear layers."""
    parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
