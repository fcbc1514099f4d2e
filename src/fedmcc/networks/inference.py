"""Running a network without training it: eval mode for some time, and its device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(module: nn.Module) -> torch.device:
    """Device of a module; the CPU if it has no parameters."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
