"""Differential privacy of a client's whole data: its updates are clipped, their average is disturbed.

What this protects, and what not, is in docs/privacy.md.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from secrets import token_bytes

import numpy as np
import torch
from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.numerics.state_dicts import State

PIECE = 2**20  # numbers drawn at once


@dataclass(frozen=True)
class Privacy:
    """How far one client's images may move the global model."""

    clip: float | None = None  # Euclidean length that an update may have; None: any
    noise: float = 0.0  # standard deviation of the noise on the sum of all updates, in clips
    delta: float = 1e-5  # with this probability epsilon may not hold
    reproducible: bool = False  # noise from the run's seed, for experiments: who knows it can subtract it

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"privacy.clip is {self.clip}: give a number above 0.")
        if not 0 <= self.noise < math.inf:
            raise InputError(f"privacy.noise is {self.noise}: give 0 or more.")
        if self.noise and self.clip is None:
            raise InputError(
                "privacy.noise hides only what is bounded: set privacy.clip as well, such as 1.0."
            )
        if not 0 < self.delta < 1:
            raise InputError(f"privacy.delta is {self.delta}: give a number between 0 and 1, such as 1e-5.")

    def new_secret(self, seed: int) -> bytes:
        """Whence noise is drawn: from the system, or from the run's seed where that is asked for."""
        return hashlib.sha256(f"noise {seed}".encode()).digest() if self.reproducible else token_bytes(32)

    def refuse_unless_private(self, stages: Sequence[Stage]) -> None:
        """Where there is noise, everything that leaves a client must be clipped, and epsilon be known."""
        if not self.noise:
            return
        for stage in stages:
            own = type(stage)
            if own.extras is not Stage.extras or own.combine is not Stage.combine:
                raise InputError(
                    f"privacy.noise covers averaged weights alone, and in the stage {stage.name} "
                    "clients send more: use a method such as fedmcc, or leave out privacy.noise."
                )
        if find_spec("dp_accounting") is None:
            raise InputError("privacy.noise needs an accountant: pip install 'fedmcc[privacy]'.")


def clipped(weights: Mapping[str, Tensor], sent: Mapping[str, Tensor], limit: float | None) -> State:
    """The weights, moved back towards what was sent until they are no further from it than the limit."""
    moved = {
        name: value.double() - sent[name].double()
        for name, value in weights.items()
        if value.is_floating_point()
    }
    length = math.sqrt(sum(change.square().sum().item() for change in moved.values()))
    if limit is None or length <= limit:
        return dict(weights)
    near = {
        name: (sent[name].double() + change * (limit / length)).to(weights[name].dtype)
        for name, change in moved.items()
    }
    return {**weights, **near}


@dataclass(frozen=True, eq=False)
class PrivateAggregator:
    """The server's part: whatever a client sends counts as one clipped update, and noise is added."""

    privacy: Privacy = Privacy()
    secret: bytes = b""  # from which noise is drawn; clients must not know it

    def combine(self, stage: Stage, updates: Sequence[Update], model: State, round: int) -> Aggregate:
        """The stage's own step; where updates are clipped, clients count alike and not by their images."""
        if self.privacy.clip is None:
            return stage.combine(updates, model)
        bounded = [
            replace(update, samples=1, weights=clipped(update.weights, model, self.privacy.clip))
            for update in updates
        ]
        combined = stage.combine(bounded, model)
        if not self.privacy.noise:
            return combined
        scale = self.privacy.noise * self.privacy.clip / len(updates)
        stream = Stream(self.secret, f"{stage.name}/{round}")
        return combined._replace(weights=_disturbed(combined.weights, scale, stream))


def _disturbed(weights: State, scale: float, stream: "Stream") -> State:
    """Normal noise on every floating number; integer counters do not depend on what images show."""
    disturbed = {}
    for name, value in sorted(weights.items()):
        if value.is_floating_point():
            noise = torch.from_numpy(stream.normal(value.numel())).reshape(value.shape)
            disturbed[name] = (value.double() + scale * noise.to(value.device)).to(value.dtype)
    return {**weights, **disturbed}


class Stream:
    """Normal numbers that nobody foretells without the secret: SHAKE-256, then Box and Muller."""

    def __init__(self, secret: bytes, place: str) -> None:
        self.seed = hashlib.sha256(secret + b"\0" + place.encode()).digest()
        self.drawn = 0

    def normal(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """So many numbers of mean 0 and deviation 1."""
        pieces = [self._piece(min(PIECE, count - start)) for start in range(0, count, PIECE)]
        return np.concatenate(pieces) if pieces else np.empty(0)

    def _piece(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        pairs = (count + 1) // 2
        self.drawn += 1
        raw = hashlib.shake_256(self.seed + self.drawn.to_bytes(8, "little")).digest(16 * pairs)
        uniform = ((np.frombuffer(raw, "<u8") >> 11) + 0.5) * 2.0**-53  # never 0, never 1
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def epsilon(privacy: Privacy, rounds: int, participants: int, registered: int) -> float:
    """What so many rounds may tell about one client, all of whose images may have been other ones.

    Replacing a client moves the sum by two clips. Of the two bounds, with and without the gain from drawing
    the participants, the smaller one holds.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    multiplier = privacy.noise / 2
    everybody: float = dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(rounds), privacy.delta)
    if participants == registered:
        return everybody
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        registered, participants, dp_accounting.GaussianDpEvent(multiplier)
    )
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, rounds)
    return min(everybody, float(accountant.get_epsilon(privacy.delta)))
