"""Client-level differential privacy: updates are clipped, and noise is added to averages and sums.

docs/privacy.md explains what this protects and what not.
"""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from secrets import token_bytes

import numpy as np
import torch
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.federation.public_average import PublicAverage
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.extras import Additive
from fedmcc.numerics.matrices import nearest_positive_semidefinite
from fedmcc.numerics.state_dicts import State, select

MAX_DRAW = 2**20  # random numbers drawn at once


@dataclass(frozen=True)
class Privacy:
    """Options that limit the influence of one client's images on the global model."""

    clip: float | None = None  # largest Euclidean norm of an update; None: any
    noise: float = 0.0  # standard deviation of the noise on the sum of all updates, as a multiple of clip
    delta: float = 1e-5  # probability with which epsilon may not hold
    reproducible: bool = False  # all randomness from the run's seed, for experiments: the seed reveals it

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"privacy.clip is {self.clip}: give a number above 0.")
        if not 0 <= self.noise < math.inf:
            raise InputError(f"privacy.noise is {self.noise}: give 0 or more.")
        if self.noise and self.clip is None:
            raise InputError(
                "privacy.noise protects only clipped updates: set privacy.clip as well, such as 1.0."
            )
        if not 0 < self.delta < 1:
            raise InputError(f"privacy.delta is {self.delta}: give a number between 0 and 1, such as 1e-5.")

    @property
    def draws_secretly(self) -> bool:
        """Whether participants are drawn from the server's secret, as far as not all clients take part."""
        return self.noise > 0 and not self.reproducible

    def new_secret(self, seed: int) -> bytes:
        """The secret for noise and participants: random, or from the run's seed if `reproducible`."""
        return hashlib.sha256(f"noise {seed}".encode()).digest() if self.reproducible else token_bytes(32)

    def require_accountant(self) -> None:
        """Raise if noise is set and epsilon cannot be computed."""
        if self.noise and find_spec("dp_accounting") is None:
            raise InputError("privacy.noise needs the package dp-accounting: pip install 'fedmcc[privacy]'.")

    def require_private_stages(self, net: nn.Module, stages: Sequence[Stage]) -> None:
        """Raise if noise is set and a stage sends what noise does not cover, or makes useless."""
        state = net.state_dict()
        for stage in stages if self.noise else ():
            shared = select(state, stage.shared)
            if releases(stage, shared) is None:
                raise InputError(
                    f"privacy.noise covers averaged weights and bounded sums, but in the stage {stage.name} "
                    "clients send more: set clustering.prototype_rounds of informative to 5 "
                    "or so, use a clustering such as mcc, or leave out privacy.noise."
                )
            for name in shared:
                if name.endswith("running_var"):
                    section = "encoder" if "encoder" in name.split(".") else "method"
                    raise InputError(
                        "privacy.noise does not work with batch normalisation, whose running variances "
                        f'it makes negative: set {section}.norm to "group".'
                    )


def releases(stage: Stage, shared: State) -> int | None:
    """How many values of a client a round of the stage publishes with noise; None: also some without."""
    extras = stage.additive(shared)
    if extras is None or any(extra.norm is None for extra in extras.values()):
        return None
    weights = bool(stage.trained) or not extras
    return int(weights) + sum(extra.norm != 0 for extra in extras.values())


def clipped(weights: Mapping[str, Tensor], sent: Mapping[str, Tensor], limit: float | None) -> State:
    """Scale the change from the sent weights down to the Euclidean norm `limit`, if it is larger."""
    changes = {
        name: value.double() - sent[name].double()
        for name, value in weights.items()
        if value.is_floating_point()
    }
    norm = math.sqrt(sum(change.square().sum().item() for change in changes.values()))
    if limit is None or norm <= limit:
        return dict(weights)
    scaled = {
        name: (sent[name].double() + change * (limit / norm)).to(weights[name].dtype)
        for name, change in changes.items()
    }
    return {**weights, **scaled}


@dataclass(frozen=True, eq=False)
class PrivateAggregator:
    """The server's step under the privacy options: clip every update and add noise to the average."""

    privacy: Privacy = Privacy()
    secret: bytes = b""  # noise and participants are drawn from it; it must not be sent to clients

    def combine(self, stage: Stage, updates: Sequence[Update], model: State, round: int) -> Aggregate:
        """The stage's step; if updates are clipped, all clients have equal weight."""
        clip = self.privacy.clip
        if clip is None:
            return stage.combine(updates, model)
        stage = replace(stage, equal_clients=True)
        updates = [replace(update, weights=clipped(update.weights, model, clip)) for update in updates]
        if not self.privacy.noise:
            return stage.combine(updates, model)
        place, shared = f"{stage.name}/{round}", select(model, stage.shared)
        extras = stage.additive(shared)
        if not extras:
            combined = stage.combine(updates, model)
            return combined._replace(weights=self._noisy(combined.weights, len(updates), place))
        if stage.trained:
            average = stage.average([update.weights for update in updates], stage.counts(updates), model)
            shared |= self._noisy(average, len(updates), place)
        means = {name: self._noisy_mean(extra, name, updates, place) for name, extra in extras.items()}
        sums = frozenset(name for name, extra in extras.items() if extra.is_sum)
        published = PublicAverage(shared, means, sums)
        return stage.combine([published.replace_in(update) for update in updates], model)

    def _noisy(self, weights: State, clients: int, place: str) -> State:
        """Averaged weights with noise."""
        assert self.privacy.clip is not None
        scale = self.privacy.noise * self.privacy.clip / clients
        return _with_noise(weights, scale, NoiseStream(self.secret, place))

    def _noisy_mean(self, extra: Additive, name: str, updates: Sequence[Update], place: str) -> Tensor:
        """The mean over clients of their means over images, with noise; a matrix stays one of variances."""
        means = [update.extras[name].double() / (update.samples if extra.is_sum else 1) for update in updates]
        mean = torch.stack(means).mean(dim=0)
        if extra.norm:
            scale = self.privacy.noise * extra.norm / len(updates)
            drawn = NoiseStream(self.secret, f"{place}/{name}").normal(extra.length)
            mean = mean + scale * torch.from_numpy(drawn).reshape(extra.shape)
            if extra.symmetric:
                mean = nearest_positive_semidefinite(mean)
        return mean.to(extra.dtype)


def _with_noise(weights: State, scale: float, stream: "NoiseStream") -> State:
    """Floating-point tensors with normal noise; integers are left out: they reveal numbers of steps."""
    noisy = {}
    for name, value in sorted(weights.items()):
        if value.is_floating_point():
            noise = torch.from_numpy(stream.normal(value.numel())).reshape(value.shape)
            noisy[name] = (value.double() + scale * noise.to(value.device)).to(value.dtype)
    return noisy


class NoiseStream:
    """Normal random numbers that cannot be predicted without the secret: SHAKE-256 and Box-Muller."""

    def __init__(self, secret: bytes, place: str) -> None:
        self.seed = hashlib.sha256(secret + b"\0" + place.encode()).digest()
        self.drawn = 0

    def normal(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The next `count` numbers, with mean 0 and standard deviation 1."""
        blocks = [self._block(min(MAX_DRAW, count - start)) for start in range(0, count, MAX_DRAW)]
        return np.concatenate(blocks) if blocks else np.empty(0)

    def _block(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        pairs = (count + 1) // 2
        self.drawn += 1
        raw = hashlib.shake_256(self.seed + self.drawn.to_bytes(8, "little")).digest(16 * pairs)
        uniform = ((np.frombuffer(raw, "<u8") >> 11) + 0.5) * 2.0**-53  # strictly between 0 and 1
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def draw_secretly(secret: bytes, clients: Sequence[int], size: int, place: str) -> list[int]:
    """Draw `size` of the clients at a place such as "head/3/1", unpredictable without the secret; sorted."""

    def key(client: int) -> bytes:
        return hmac.digest(secret, f"participants/{place}/{client}".encode(), "sha256")

    return sorted(sorted(clients, key=key)[:size])


def epsilon(privacy: Privacy, published: int) -> float:
    """Epsilon for the replacement of all images of a client of which this number of values were published.

    Usually it is one value per round, see `releases`. Replacing a client changes a sum by at most two clips.
    The result is exact for the Gaussian mechanism, and holds if it is known when the client took part.
    """
    import dp_accounting

    multiplier = privacy.noise / 2 / math.sqrt(published)
    return float(dp_accounting.get_epsilon_gaussian(multiplier, privacy.delta))


def epsilon_secret_draw(privacy: Privacy, rounds: int, participants: int, registered: int) -> float:
    """Upper bound of epsilon against one other client, who knows only in which rounds it was drawn itself.

    In a round in which this client is not drawn, the participants are drawn from all others. The result is
    the smaller of two valid bounds, with amplification by sampling without replacement and without.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    every_round = epsilon(privacy, rounds)
    if participants >= registered - 1:
        return every_round
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        registered - 1, participants, dp_accounting.GaussianDpEvent(privacy.noise / 2)
    )
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, rounds)
    return min(every_round, float(accountant.get_epsilon(privacy.delta)))
