"""The vector that a client masks: its weighted change, then its additive extras; and back from the sum."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmcc.federation.public_average import PublicAverage
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.masks import Integers
from fedmcc.federation.secure_aggregation.quantise import (
    LIMIT,
    Reals,
    decode,
    decode_finely,
    encode,
    encode_finely,
)
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.methods.extras import Additive
from fedmcc.numerics.state_dicts import State, select
from fedmcc.storage.safetensor_files import encoded_chunks


class Weighting(NamedTuple):
    """The images of all drawn clients; clipped ones count equally, and not by their images."""

    images: Mapping[int, int]
    clip: float | None = None  # privacy.clip

    @property
    def equal(self) -> bool:
        """Whether clients count equally."""
        return self.clip is not None

    @property
    def unit(self) -> float:
        """By how much changes are divided: no integer then stands for a change much beyond the clip."""
        return 1.0 if self.clip is None else self.clip / LIMIT

    @property
    def total(self) -> int:
        """Number of images of all drawn clients."""
        return sum(self.images.values())

    def share(self, *clients: int) -> float:
        """The share of these clients in an average over all drawn clients."""
        if self.equal:
            return len(clients) / len(self.images)
        return sum(self.images[client] for client in clients) / self.total


@dataclass(frozen=True, eq=False)
class Layout:
    """The order of the numbers in all vectors of a round."""

    sent: State  # the floating-point weights that the server sent, sorted by name
    extras: Mapping[str, Additive]
    weighting: Weighting

    def __len__(self) -> int:
        extras = sum(extra.length for extra in self.extras.values())
        return sum(value.numel() for value in self.sent.values()) + 2 * extras

    @property
    def extra_bytes(self) -> int:
        """Bytes by which a vector is larger than the extras that it has."""
        return sum(extra.length * (8 - extra.dtype.itemsize) for extra in self.extras.values())

    def encode(self, update: Update) -> Integers:
        """The vector of an update; raises ProtocolError for numbers that cannot be sent."""
        self._check(update)
        share = self.weighting.share(update.client)
        changes = [_flat(update.weights[name]) - _flat(value) for name, value in self.sent.items()]
        of_sums = share / update.samples if self.weighting.equal else 1 / self.weighting.total
        factors = {name: of_sums if extra.is_sum else share for name, extra in self._sorted}
        statistics = [factors[name] * _flat(update.extras[name]) for name, _ in self._sorted]
        scaled = share * _joined(changes) / self.weighting.unit
        return np.concatenate([encode(scaled), encode_finely(_joined(statistics))])

    def decode(self, total: Integers, received: Collection[int]) -> PublicAverage:
        """The average over the clients whose vectors are in the sum."""
        share = self.weighting.share(*received)
        length = sum(value.numel() for value in self.sent.values())
        statistics = torch.from_numpy(decode_finely(total[length:]))
        parts = torch.split(statistics, [extra.length for _, extra in self._sorted])
        extras = {
            name: (part / share).view(extra.shape).to(extra.dtype)
            for (name, extra), part in zip(self._sorted, parts, strict=True)
        }
        sums = frozenset(name for name, extra in self._sorted if extra.is_sum)
        change = decode(total[:length]) * self.weighting.unit / share
        return PublicAverage(_moved(self.sent, change), extras, sums)

    @property
    def _sorted(self) -> list[tuple[str, Additive]]:
        return sorted(self.extras.items())

    def _check(self, update: Update) -> None:
        shapes = {name: value.shape for name, value in update.extras.items()}
        if shapes != {name: extra.shape for name, extra in self.extras.items()}:
            raise ProtocolError("Its extra tensors are not those that are added up.")


def layout_of(stage: Stage, weights: State, weighting: Weighting) -> Layout:
    """The layout of a round with these sent weights; raises ProtocolError if something is not a sum."""
    shared = select(weights, stage.shared)
    extras = stage.additive(shared)
    if extras is None:
        raise ProtocolError(f"In the stage {stage.name} clients send statistics that cannot be added up.")
    sent = {name: value for name, value in sorted(shared.items()) if value.is_floating_point()}
    return Layout(sent, extras, weighting)


def hash_of_sent(stage: Stage, task: Task) -> str:
    """SHA-256 of what all clients of a round must be sent alike: the shared weights and the extras.

    Clients that learn nothing from another model that they are sent would leave one update alone in the sum.
    """
    digest = sha256()
    for state in (select(task.weights, stage.shared), task.extras):
        for chunk in encoded_chunks(state):
            digest.update(chunk)
    return digest.hexdigest()


def _flat(value: Tensor) -> Reals:
    return value.detach().cpu().double().flatten().numpy()


def _joined(parts: list[Reals]) -> Reals:
    return np.concatenate([np.empty(0), *parts])


def _moved(sent: State, change: Reals) -> State:
    """The sent tensors, to which consecutive parts of the change are added.

    Rounding can move a variance of almost 0 below 0, where the mean of the updates is not.
    """
    parts = torch.split(torch.from_numpy(change), [value.numel() for value in sent.values()])
    moved = {
        name: (value.double() + part.view(value.shape)).to(value.dtype)
        for (name, value), part in zip(sent.items(), parts, strict=True)
    }
    return {
        name: value.clamp_min_(0) if name.endswith("running_var") else value for name, value in moved.items()
    }
