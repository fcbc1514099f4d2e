"""Checks of updates: invalid, stale and outlying updates are refused, with a reason."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State, select

log = logging.getLogger(__name__)

MAX_SAMPLES = 10**9  # images of a client; no data set of images has more
MAX_LOSS = 1e9  # absolute value; honest losses are below 1e4
MAX_VALUE = 1e18  # absolute value of a number in a tensor; the square of a larger one overflows in float32
MAX_PASSES = 100  # through a BatchNorm layer, per image and epoch: each adds 1 to its counter
MIN_UPDATES_TO_COMPARE = 3  # with two updates, it is unknown which is the outlier
CLIP_TOLERANCE = 1e-3  # of the clip, for the steps in which numbers are sent
ROUNDING = 1e-6  # of the model's norm, for the rounding of float32, which is 6e-8 at most
MIN_SCALE = 0.1  # root mean square of a model's weights for the norm limit, at least; some start at 0


class Limits(NamedTuple):
    """The operator's limits of an update."""

    norm: float = math.inf  # of the distance from the sent model; a multiple of its norm and of the median
    samples: int = MAX_SAMPLES
    clip: float = math.inf  # of the distance, which only a client that does not clip its update exceeds


class Refused(NamedTuple):
    """A refused update, and the reason."""

    client: int
    reason: str


class CheckedUpdates(NamedTuple):
    """The accepted and the refused updates of a round, sorted by client."""

    updates: tuple[Update, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, eq=False)
class UpdateChecker:
    """Checks updates against the tasks that they answer."""

    stage: Stage
    tasks: Mapping[int, Task]  # by client, with only the shared weights
    limits: Limits
    samples: Callable[[int], int | None]  # the known number of a client's images

    def check(self, updates: Iterable[Update]) -> CheckedUpdates:
        """Separate accepted from refused updates; their order of arrival does not matter.

        Each check gets only the updates that passed the previous ones, so that the median of distances is
        not distorted by invalid values.
        """
        accepted = sorted(updates, key=lambda update: update.client)
        refused: list[Refused] = []
        for check in (self._invalid, _repeated, self._outlying):
            reasons = check(accepted)
            checked = list(zip(accepted, reasons, strict=True))
            refused += [Refused(update.client, reason) for update, reason in checked if reason]
            accepted = [update for update, reason in checked if not reason]
        return CheckedUpdates(tuple(accepted), tuple(sorted(set(refused))))

    def _invalid(self, updates: Sequence[Update]) -> list[str]:
        return [self._guarded_error(update) for update in updates]

    def _guarded_error(self, update: Update) -> str:
        """Why this update is invalid; an update that makes a check raise an error is invalid too."""
        try:
            return self._error(update)
        except Exception as error:
            log.debug("The check of an update of client %d failed.", update.client, exc_info=True)
            return f"It cannot be checked ({type(error).__name__})."

    def _error(self, update: Update) -> str:
        task = self.tasks.get(update.client)
        if task is None:
            return "It has no task in this round."
        if (update.stage, update.round) != (task.stage, task.round):
            return (
                f"It answers round {update.round} of {update.stage:.40}, "
                f"not round {task.round} of {task.stage}."
            )
        return (
            self._samples_error(update)
            or _loss_error(update.loss)
            or _mismatch(update.weights, task.weights)
            or value_error(update.weights)
            or value_error(update.extras)
            or _buffer_error(update, task.weights, self.stage.epochs)
            or self.stage.extras_error(update)
        )

    def _samples_error(self, update: Update) -> str:
        samples, known = update.samples, self.samples(update.client)
        if type(samples) is not int or not 0 < samples <= MAX_SAMPLES:
            return f"Its number of images is not an integer from 1 to {MAX_SAMPLES}."
        if samples > self.limits.samples:
            return f"It reports {samples} images; federation.max_samples allows {self.limits.samples}."
        if known is not None and samples != known:
            return f"It reports {samples} images, but it joined with {known}."
        return ""

    def _outlying(self, updates: Sequence[Update]) -> list[str]:
        """Refuse updates beyond the norm limit, which would dominate the average.

        The multiple of the sent model's norm is also a limit for one or two updates, of which it is unknown
        which is the outlier. Only updates within it count for the median.
        """
        limit = self.limits.norm
        if math.isinf(limit) and math.isinf(self.limits.clip):
            return [""] * len(updates)
        pairs = [(update.weights, self.tasks[update.client].weights) for update in updates]
        distances = [_distance(*pair) for pair in pairs]
        scales = [_scale(sent) for _, sent in pairs]
        measured = list(zip(distances, scales, strict=True))
        if math.isinf(limit):
            return [_clip_error(distance, self.limits.clip, scale) for distance, scale in measured]
        near = [distance for distance, scale in measured if distance <= limit * scale]
        # The lower of the two middle values: half the updates may be hostile.
        median = median_low(near) if len(near) >= MIN_UPDATES_TO_COMPARE else math.inf
        return [_distance_error(distance, limit, scale, median) for distance, scale in measured]


def checker_for(
    stage: Stage,
    tasks: Iterable[Task],
    limits: Limits,
    samples: Callable[[int], int | None] = lambda client: None,
) -> UpdateChecker:
    """The checker of updates that answer these tasks; `samples` gives a client's known number of images."""
    by_client = {task.client: replace(task, weights=select(task.weights, stage.shared)) for task in tasks}
    return UpdateChecker(stage, by_client, limits, samples)


def _loss_error(loss: float | None) -> str:
    if loss is None or abs(loss) <= MAX_LOSS:
        return ""
    return (
        f"Its loss is {loss}." if not math.isfinite(loss) else f"Its loss is beyond {MAX_LOSS:g}: {loss:g}."
    )


def _mismatch(weights: State, expected: State) -> str:
    for name in sorted(expected.keys() ^ weights.keys()):
        return f"Its {name} is missing." if name in expected else f"It has {name!r:.80}, which is not shared."
    for name, value in expected.items():
        received = weights[name]
        if received.shape != value.shape:
            return f"Its {name} has shape {tuple(received.shape)}; expected {tuple(value.shape)}."
        if received.dtype != value.dtype:
            return f"Its {name} has type {received.dtype}; expected {value.dtype}."
    return ""


def value_error(state: State) -> str:
    """Which floating-point tensor has numbers that are not finite, or too large to compute with."""
    for name, value in state.items():
        if not value.is_floating_point() or not value.numel():
            continue
        lowest, highest = _range(value)
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            return f"Its {name:.80} is not finite."
        if max(-lowest, highest) > MAX_VALUE:
            return f"Its {name:.80} has numbers above {MAX_VALUE:g}."
    return ""


def _buffer_error(update: Update, sent: State, epochs: int) -> str:
    """Which running variance or counter has a value that training cannot give it."""
    passes = MAX_PASSES * max(1, epochs) * update.samples
    for name, value in update.weights.items():
        counter = not value.is_floating_point() and value.dtype is not torch.bool
        if not value.numel() or not (counter or name.endswith("running_var")):
            continue
        (lowest, highest), (sent_lowest, sent_highest) = _range(value), _range(sent[name])
        if lowest < min(0, sent_lowest):
            return f"Its {name} is negative."
        if counter and highest > max(0, sent_highest) + passes:
            return f"Its {name} is {highest}; it was {sent_highest} in the model that was sent."
    return ""


def _range(value: Tensor) -> tuple[int | float, int | float]:
    """The smallest and the largest number of a tensor, which are nan if any number is."""
    lowest, highest = value.aminmax()
    return lowest.item(), highest.item()


def _repeated(updates: Sequence[Update]) -> list[str]:
    """Refuse all updates of a client that sent several, because it is unknown which one is genuine."""
    times = Counter(update.client for update in updates)
    return [
        f"It answered {times[update.client]} times." if times[update.client] > 1 else "" for update in updates
    ]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Euclidean distance over all floating-point tensors together."""
    return math.hypot(
        *(
            torch.linalg.vector_norm(value.to(torch.float64, copy=True).sub_(b[name])).item()
            for name, value in a.items()
            if value.is_floating_point()
        )
    )


def _scale(sent: Mapping[str, Tensor]) -> float:
    """Euclidean norm of the sent model, and at least that of a model whose weights are MIN_SCALE."""
    values = [value for value in sent.values() if value.is_floating_point()]
    norm = math.hypot(*(torch.linalg.vector_norm(value, dtype=torch.float64).item() for value in values))
    return max(norm, MIN_SCALE * math.sqrt(sum(value.numel() for value in values)))


def _clip_error(distance: float, clip: float, scale: float) -> str:
    if distance <= clip + CLIP_TOLERANCE * clip + ROUNDING * scale:
        return ""
    return f"Its weights moved by {distance:.3g}, which privacy.clip limits to {clip:g}."


def _distance_error(distance: float, limit: float, scale: float, median: float) -> str:
    moved = f"Its weights moved by {distance:.3g}, more than {limit:g} times"
    if distance > limit * scale:
        return f"{moved} the norm of the sent model, {scale:.3g}."
    return f"{moved} the median of {median:.3g}." if distance > limit * median else ""
