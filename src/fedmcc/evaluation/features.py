"""What a branch makes of images: the arrays that every score starts from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.momentum import Branch
from fedmcc.numerics.state_dicts import State, detached, equal_states
from fedmcc.training.loop import DivergedError

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
    features = encode(branch.encoder, images, prepare, batch_size)
    return Extracted(features, assign(branch, features, batch_size))


def encode(
    encoder: nn.Module, images: Inputs, prepare: Callable[[Tensor], Tensor], batch_size: int = 512
) -> Float32[np.ndarray, "n d"]:
    """The features of all images by the encoder in eval mode, where it is."""
    if len(images) == 0:
        raise InputError("There are no images to evaluate: check the data set and its limit.")
    with evaluating(encoder), torch.inference_mode():
        found = [
            encoder(prepare(batch)).float().cpu()
            for batch in _batches(images, batch_size, device_of(encoder))
        ]
    if not all(torch.isfinite(batch).all() for batch in found):
        raise DivergedError("The features are not finite, training has diverged: lower the learning rate.")
    return torch.cat(found).numpy()


def assign(
    branch: Branch, features: Float32[np.ndarray, "n d"], batch_size: int = 512
) -> Float32[np.ndarray, "n k"] | None:
    """The soft assignments of all images from their features, if the branch has a cluster projector."""
    project = branch.cluster_projector
    if project is None:
        return None
    with evaluating(project), torch.inference_mode():
        given = torch.from_numpy(features).to(device_of(branch))
        batches = torch.split(given, batch_size)
        return torch.cat([project(batch).float().cpu() for batch in batches]).numpy()


class UntilChanged:
    """What was computed with an encoder, until its weights are others."""

    def __init__(self) -> None:
        self._encoder: nn.Module | None = None
        self._state: State = {}
        self._found: dict[str, Any] = {}

    def get(self, encoder: nn.Module, name: str, compute: Callable[[], Any]) -> Any:
        """What is known by this name, computed if need be."""
        state = encoder.state_dict()
        if encoder is not self._encoder or not equal_states(state, self._state):
            self._found.clear()
            self._encoder, self._state = encoder, detached(state)
        if name not in self._found:
            self._found[name] = compute()
        return self._found[name]


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
