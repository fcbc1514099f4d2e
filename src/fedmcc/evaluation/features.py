"""Features and assignments of images: the arrays from which every score is computed."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int, UInt8
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.inference import device_of, eval_mode
from fedmcc.networks.momentum import Branch
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.state_dicts import State, detached, equal_states
from fedmcc.training.loop import DivergedError

Inputs = UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n d"]


class Extracted(NamedTuple):
    """One row per image: encoder features, and soft assignments if the branch has a cluster projector."""

    features: Float32[np.ndarray, "n d"]
    assignments: Float32[np.ndarray, "n k"] | None


def extract(
    branch: Branch,
    images: Inputs,
    prepare: Callable[[Tensor], Tensor],
    batch_size: int = 512,
) -> Extracted:
    """Run the branch in eval mode on its device; `prepare` turns a batch of images into its input.

    If the encoder is the identity, `images` are features.
    """
    features = encode(branch.encoder, images, prepare, batch_size)
    return Extracted(features, assign(branch, features, batch_size))


def encode(
    encoder: nn.Module, images: Inputs, prepare: Callable[[Tensor], Tensor], batch_size: int = 512
) -> Float32[np.ndarray, "n d"]:
    """Features of all images, computed by the encoder in eval mode on its device."""
    if len(images) == 0:
        raise InputError("There are no images to evaluate: check the data set and its limit.")
    batch_size = min(batch_size, getattr(encoder, "max_batch", batch_size))
    with eval_mode(encoder), torch.inference_mode():
        features = [
            encoder(prepare(batch)).float().cpu()
            for batch in _batches(images, batch_size, device_of(encoder))
        ]
    if not all(torch.isfinite(batch).all() for batch in features):
        raise DivergedError("The features are not finite, training has diverged: lower the learning rate.")
    return torch.cat(features).numpy()


def assign(
    branch: Branch, features: Float32[np.ndarray, "n d"], batch_size: int = 512
) -> Float32[np.ndarray, "n k"] | None:
    """Soft assignments of all images, computed from their features; None without a cluster projector."""
    project = branch.cluster_projector
    if project is None:
        return None
    with eval_mode(project), torch.inference_mode():
        batches = torch.split(torch.from_numpy(features).to(device_of(branch)), batch_size)
        return torch.cat([project(batch).float().cpu() for batch in batches]).numpy()


def at_owner(
    branch: Branch, features: Float32[np.ndarray, "n d"], mixture: Tensor, batch_size: int = 512
) -> Float32[np.ndarray, "n k"]:
    """Soft assignments of images of one client with this mixture of clusters."""
    head = branch.cluster_projector
    assert isinstance(head, Prototypes)
    with eval_mode(head), torch.inference_mode():
        mixture = mixture.to(head.groups)
        batches = torch.split(torch.from_numpy(features).to(device_of(branch)), batch_size)
        return torch.cat([head.at_owner(batch, mixture).float().cpu() for batch in batches]).numpy()


def at_owners(
    branch: Branch, features: Float32[np.ndarray, "n d"], owners: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, "n k"] | None:
    """Soft assignments given the owner of each image, -1 if unknown; None if the head cannot use it."""
    head = branch.cluster_projector
    if not isinstance(head, Prototypes):
        return None
    soft = assign(branch, features)
    assert soft is not None
    for owner in np.unique(owners[owners >= 0]):
        own = owners == owner
        soft[own] = at_owner(branch, features[own], torch.from_numpy(soft[own].mean(axis=0)))
    return soft


class EncoderCache:
    """Values computed with an encoder, kept until its weights change."""

    def __init__(self) -> None:
        self._encoder: nn.Module | None = None
        self._state: State = {}
        self._values: dict[str, Any] = {}

    def get(self, encoder: nn.Module, name: str, compute: Callable[[], Any]) -> Any:
        """Return the value stored under this name; compute and store it if there is none."""
        state = encoder.state_dict()
        if encoder is not self._encoder or not equal_states(state, self._state):
            self._values.clear()
            self._encoder, self._state = encoder, detached(state)
        if name not in self._values:
            self._values[name] = compute()
        return self._values[name]


def _batches(images: Inputs, size: int, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, len(images), size):
        # Copied: images mapped from disk are read-only, and torch has no read-only tensors.
        yield torch.from_numpy(np.array(images[start : start + size])).to(device)
