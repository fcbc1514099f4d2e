"""What a branch makes of images: the arrays that every score starts from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.momentum import Branch
from fedmcc.training import DivergedError

Inputs = UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n d"]


class Extracted(NamedTuple):
    """A row per image: features of the encoder, soft assignments if the branch has a cluster projector."""

    features: Float32[np.ndarray, "n d"]
    assignments: Float32[np.ndarray, "n k"] | None


def extract(
    branch: Branch,
    images: Inputs,
    prepare: Callable[[Tensor], Tensor],
    batch_size: int = 512,
) -> Extracted:
    """Run the branch in eval mode, where it is, over images that `prepare` turns into its input.

    A branch whose encoder does nothing takes features in their place.
    """
    if len(images) == 0:
        raise InputError("There are no images to evaluate: check the data set and its limit.")
    features, assignments = [], []
    project = branch.cluster_projector
    with evaluating(branch), torch.inference_mode():
        for batch in _batches(images, batch_size, device_of(branch)):
            found = branch.encoder(prepare(batch))
            features.append(found.float().cpu())
            if project is not None:
                assignments.append(project(found).float().cpu())
    if not all(torch.isfinite(batch).all() for batch in features):
        raise DivergedError("The features are not finite, training has diverged: lower the learning rate.")
    return Extracted(torch.cat(features).numpy(), torch.cat(assignments).numpy() if assignments else None)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside, and afterwards every module in the mode it was in before."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _batches(images: Inputs, size: int, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, len(images), size):
        # A copy: images mapped from disk are read-only, which tensors cannot be.
        yield torch.from_numpy(np.array(images[start : start + size])).to(device)


def device_of(module: nn.Module) -> torch.device:
    """Where a module is; one without parameters is on the CPU."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
