"""Running a network without training it: eval mode for some time, and its device."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

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
    """Device of a module; the CPU if it has neither parameters nor buffers."""
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
