"""Task and Update: all that crosses the wire between a server and its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.numerics.state_dicts import State, size_in_bytes


@dataclass(frozen=True, eq=False)
class Task:
    """What the server asks of one client in one round."""

    client: int
    stage: str
    round: int
    weights: State
    extras: State = field(default_factory=dict)
    half: bool = False  # weights travel packed, this way and back

    @property
    def bytes(self) -> int:
        """Bytes of the numbers sent down."""
        return size_in_bytes(self.weights) + size_in_bytes(self.extras)

    def unpacked(self) -> "Task":
        """The task as a client works with it."""
        return replace(self, weights=unpack(self.weights)) if self.half else self


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back: the shared weights after its local training, and how it went."""

    client: int
    stage: str
    round: int
    samples: int
    loss: float | None  # None where nothing was trained
    weights: State
    extras: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the numbers sent up."""
        return size_in_bytes(self.weights) + size_in_bytes(self.extras)

    def packed(self) -> "Update":
        """The update as it travels where the task says `half`."""
        return replace(self, weights=pack(self.weights))

    def unpacked(self) -> "Update":
        """The update as the server works with it."""
        return replace(self, weights=unpack(self.weights))


class Unsent(NamedTuple):
    """A task that never left the server."""

    client: int


class StateLost(NamedTuple):
    """A client has lost what it remembered, and with it the round; it starts afresh with the next."""

    client: int


class StageRound(NamedTuple):
    """A round of a stage, after which a client remembers something."""

    stage: str
    round: int


def pack(weights: Mapping[str, Tensor]) -> State:
    """Single precision as half precision, the nearest such number; everything else as it is.

    What half precision cannot hold becomes infinite, and the server refuses it.
    """
    return {name: _cast(value, torch.float32, torch.float16) for name, value in weights.items()}


def unpack(weights: Mapping[str, Tensor]) -> State:
    """Undoes `pack` but for its rounding."""
    return {name: _cast(value, torch.float16, torch.float32) for name, value in weights.items()}


def _cast(value: Tensor, old: torch.dtype, new: torch.dtype) -> Tensor:
    return value.to(new) if value.dtype == old else value
