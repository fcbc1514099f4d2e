"""Messages between a server and its clients, with any engine: Task, Update, and reasons for no update.

`deployment.messages` holds the additional messages between a server and its sites.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.numerics.state_dicts import State, size_in_bytes


@dataclass(frozen=True, eq=False)
class Task:
    """The work of one client in one round: the global weights and the method's extra tensors."""

    client: int
    stage: str
    round: int
    weights: State
    extras: State = field(default_factory=dict)
    half: bool = False  # send weights in half precision, in the task and in the update

    @property
    def bytes(self) -> int:
        """Size of the tensors sent to the client, in bytes."""
        return size_in_bytes(self.weights) + size_in_bytes(self.extras)

    def unpacked(self) -> "Task":
        """The task with weights in single precision."""
        return replace(self, weights=unpack(self.weights)) if self.half else self


@dataclass(frozen=True, eq=False)
class Update:
    """A client's answer to a task: the shared weights after local training, and the mean loss."""

    client: int
    stage: str
    round: int
    samples: int
    loss: float | None  # None if the stage trains nothing
    weights: State
    extras: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of the tensors sent to the server, in bytes."""
        return size_in_bytes(self.weights) + size_in_bytes(self.extras)

    def packed(self) -> "Update":
        """The update with weights in half precision, as the answer to a task with `half`."""
        return replace(self, weights=pack(self.weights))

    def unpacked(self) -> "Update":
        """The update with weights in single precision."""
        return replace(self, weights=unpack(self.weights))


class Unsent(NamedTuple):
    """A task that was not sent to its client."""

    client: int


class Discarded(NamedTuple):
    """Bytes that were received from a client and are in no update."""

    client: int
    bytes: int


class Unmasked(NamedTuple):
    """Clients have revealed the sum of their updates; they do not reveal another one of this round."""


class StateLost(NamedTuple):
    """A client lost its saved state and drops out of this round; the next task initialises it again."""

    client: int


class StageRound(NamedTuple):
    """A round of a stage; identifies the client state saved after it."""

    stage: str
    round: int


def pack(weights: Mapping[str, Tensor]) -> State:
    """Round single precision to half precision; leave other data types unchanged.

    Values too large for half precision become infinite, and the server refuses such an update.
    """
    return {name: _cast(value, torch.float32, torch.float16) for name, value in weights.items()}


def unpack(weights: Mapping[str, Tensor]) -> State:
    """Convert half precision back to single precision; the rounding of `pack` remains."""
    return {name: _cast(value, torch.float16, torch.float32) for name, value in weights.items()}


def _cast(value: Tensor, old: torch.dtype, new: torch.dtype) -> Tensor:
    return value.to(new) if value.dtype == old else value
