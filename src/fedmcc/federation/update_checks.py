"""Which updates count: what is broken, stale or out of all proportion is refused, and the reason is said."""

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

MOST_SAMPLES = 2**53  # the average is taken in float64, which counts no further
FEWEST_TO_COMPARE = 3  # of two updates nobody can say which is out of proportion


class Refused(NamedTuple):
    """An update that does not count, and why."""

    client: int
    reason: str


class Admitted(NamedTuple):
    """The updates of a round by client, and those that were refused."""

    updates: tuple[Update, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, eq=False)
class Admission:
    """What the server knows about the answers that it expects."""

    stage: Stage
    tasks: Mapping[int, Task]  # by client, with the shared weights alone
    norm_limit: float  # multiple of the median distance from the model that was sent

    def judge(self, updates: Iterable[Update]) -> Admitted:
        """Part the good from the bad; the order in which they came does not matter.

        Each check sees what the ones before let through, so that broken numbers distort no median.
        """
        good = sorted(updates, key=lambda update: update.client)
        refused: list[Refused] = []
        for check in (self._alone, _answered_once, self._in_proportion):
            reasons = check(good)
            judged = list(zip(good, reasons, strict=True))
            refused += [Refused(update.client, reason) for update, reason in judged if reason]
            good = [update for update, reason in judged if not reason]
        return Admitted(tuple(good), tuple(sorted(set(refused))))

    def _alone(self, updates: Sequence[Update]) -> list[str]:
        return [
            _objection(update, self.tasks.get(update.client)) or self.stage.extras_error(update)
            for update in updates
        ]

    def _in_proportion(self, updates: Sequence[Update]) -> list[str]:
        """Beyond the limit an update would drown all others in the average."""
        if len(updates) < FEWEST_TO_COMPARE or math.isinf(self.norm_limit):
            return [""] * len(updates)
        moved = [_distance(update.weights, self.tasks[update.client].weights) for update in updates]
        median = median_low(moved)  # of an even number the lower: half the updates may be hostile
        reason = "Its weights moved by {:.3g}, beyond {:g} times the median of {:.3g}."
        return [
            reason.format(norm, self.norm_limit, median) if norm > self.norm_limit * median else ""
            for norm in moved
        ]


def expect(stage: Stage, tasks: Iterable[Task], norm_limit: float) -> Admission:
    """The admission of answers to these tasks."""
    asked = {task.client: replace(task, weights=select(task.weights, stage.shared)) for task in tasks}
    return Admission(stage, asked, norm_limit)


def _objection(update: Update, task: Task | None) -> str:
    """Why this update by itself cannot count, or nothing."""
    if task is None:
        return "It was not asked."
    if (update.stage, update.round) != (task.stage, task.round):
        return f"It answers round {update.round} of {update.stage:.40}, not {task.round} of {task.stage}."
    if type(update.samples) is not int or not 0 < update.samples <= MOST_SAMPLES:
        return f"Its number of images is no number from 1 to {MOST_SAMPLES}."
    if update.loss is not None and not math.isfinite(update.loss):
        return f"Its loss is {update.loss}."
    return _unlike(update.weights, task.weights) or _broken(update.weights) or _broken(update.extras)


def _unlike(weights: State, expected: State) -> str:
    for name in sorted(expected.keys() ^ weights.keys()):
        return f"It lacks {name}." if name in expected else f"It has {name!r:.80}, which is not shared."
    for name, value in expected.items():
        own = weights[name]
        if own.shape != value.shape:
            return f"Its {name} is of shape {tuple(own.shape)}, not {tuple(value.shape)}."
        if own.dtype != value.dtype:
            return f"Its {name} is of type {own.dtype}, not {value.dtype}."
    return ""


def _broken(state: State) -> str:
    for name, value in state.items():
        if not _is_finite(value):
            return f"Its {name:.80} is not finite."
    return ""


def _is_finite(value: Tensor) -> bool:
    """Whether no number is infinite or nan; the extremes tell it in one pass, and nan is both of them."""
    extremes = value.aminmax() if value.is_floating_point() and value.numel() else (value,)
    return all(bool(torch.isfinite(extreme).all()) for extreme in extremes)


def _answered_once(updates: Sequence[Update]) -> list[str]:
    """Of several answers nobody can say which is the client's: none counts, whichever came first."""
    times = Counter(update.client for update in updates)
    return [
        f"It answered {times[update.client]} times." if times[update.client] > 1 else "" for update in updates
    ]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The Euclidean distance of all floating numbers together."""
    return math.hypot(
        *(
            torch.linalg.vector_norm(value.to(torch.float64, copy=True).sub_(b[name])).item()
            for name, value in a.items()
            if value.is_floating_point()
        )
    )
