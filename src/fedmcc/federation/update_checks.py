"""Checks of updates: invalid, stale and outlying updates are refused, with a reason."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State, select

MAX_SAMPLES = 2**53  # averages are computed in float64, which has no larger exact integers
MIN_UPDATES_TO_COMPARE = 3  # with two updates, it is unknown which is the outlier


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
    norm_limit: float  # multiple of the median distance from the sent model

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
        return [
            _error(update, self.tasks.get(update.client)) or self.stage.extras_error(update)
            for update in updates
        ]

    def _outlying(self, updates: Sequence[Update]) -> list[str]:
        """Refuse updates beyond the norm limit, which would dominate the average."""
        if len(updates) < MIN_UPDATES_TO_COMPARE or math.isinf(self.norm_limit):
            return [""] * len(updates)
        distances = [_distance(update.weights, self.tasks[update.client].weights) for update in updates]
        median = median_low(distances)  # the lower of the two middle values: half the updates may be hostile
        reason = "Its weights moved by {:.3g}, more than {:g} times the median of {:.3g}."
        return [
            reason.format(distance, self.norm_limit, median) if distance > self.norm_limit * median else ""
            for distance in distances
        ]


def checker_for(stage: Stage, tasks: Iterable[Task], norm_limit: float) -> UpdateChecker:
    """The checker of the updates that answer these tasks."""
    by_client = {task.client: replace(task, weights=select(task.weights, stage.shared)) for task in tasks}
    return UpdateChecker(stage, by_client, norm_limit)


def _error(update: Update, task: Task | None) -> str:
    """Why this update is invalid, independently of the others; empty if it is valid."""
    if task is None:
        return "It has no task in this round."
    if (update.stage, update.round) != (task.stage, task.round):
        return (
            f"It answers round {update.round} of {update.stage:.40}, not round {task.round} of {task.stage}."
        )
    if type(update.samples) is not int or not 0 < update.samples <= MAX_SAMPLES:
        return f"Its number of images is not an integer from 1 to {MAX_SAMPLES}."
    if update.loss is not None and not math.isfinite(update.loss):
        return f"Its loss is {update.loss}."
    return (
        _mismatch(update.weights, task.weights) or _not_finite(update.weights) or _not_finite(update.extras)
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


def _not_finite(state: State) -> str:
    for name, value in state.items():
        if not _is_finite(value):
            return f"Its {name:.80} is not finite."
    return ""


def _is_finite(value: Tensor) -> bool:
    """Whether no number is infinite or nan, from minimum and maximum, which are nan if any number is."""
    extremes = value.aminmax() if value.is_floating_point() and value.numel() else (value,)
    return all(bool(torch.isfinite(extreme).all()) for extreme in extremes)


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
