"""The only round loop. Centralized training is a federation of one client."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from fedmcc.errors import InputError
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.states import State, select
from fedmcc.training import Step


@dataclass(frozen=True)
class Federation:
    """How a server runs its rounds."""

    fraction: float = 1.0  # of the clients that take part in a round
    only: int | None = None  # this client trains alone: the paper's single client

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(f"federation.fraction is {self.fraction}: give a number above 0, up to 1.")


@dataclass(frozen=True, eq=False)
class Progress:
    """All that the server knows after a round: enough to go on from here."""

    model: State  # the global network
    stage: str = ""
    round: int = 0
    extras: State = field(default_factory=dict)  # what goes out with the next tasks
    met: frozenset[int] = frozenset()  # clients that have what the stage froze


@dataclass(frozen=True, eq=False)
class Round:
    """What a round gave."""

    progress: Progress
    updates: tuple[Update, ...]
    loss: float | None  # mean over images; None where nothing was trained
    bytes_down: int
    bytes_up: int
    seconds: float


@runtime_checkable
class Engine(Protocol):
    """A map over clients: tasks in, updates out, in any order; steps between them where they can be seen."""

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Let the clients answer."""


def rounds(
    stage: Stage, progress: Progress, engine: Engine, clients: Sequence[int]
) -> Iterator[Step | Round]:
    """Algorithms 1 and 2 at the server, going on from `progress`; saving and scoring are the caller's."""
    if progress.stage != stage.name:
        progress = Progress(progress.model, stage.name)
    while progress.round < stage.rounds:
        started = time.perf_counter()
        tasks = [_task(stage, progress, client) for client in clients]
        updates = []
        for event in engine.run(stage, tasks):
            if isinstance(event, Update):
                updates.append(event)
            else:
                yield event
        updates.sort(key=lambda update: update.client)  # sums do not depend on who was first
        progress = _advance(stage, progress, updates)
        yield Round(
            progress=progress,
            updates=tuple(updates),
            loss=_mean_loss(updates),
            bytes_down=sum(task.bytes for task in tasks),
            bytes_up=sum(update.bytes for update in updates),
            seconds=time.perf_counter() - started,
        )


def _task(stage: Stage, progress: Progress, client: int) -> Task:
    parts = stage.shared if client in progress.met else (*stage.frozen, *stage.shared)
    weights = select(progress.model, parts)
    return Task(client, stage.name, progress.round + 1, weights, progress.extras)


def _advance(stage: Stage, progress: Progress, updates: Sequence[Update]) -> Progress:
    combined = stage.combine(updates)
    return replace(
        progress,
        model={**progress.model, **combined.weights},
        round=progress.round + 1,
        extras=combined.extras,
        met=progress.met | {update.client for update in updates},
    )


def _mean_loss(updates: Sequence[Update]) -> float | None:
    losses = [(update.loss, update.samples) for update in updates if update.loss is not None]
    samples = sum(count for _, count in losses)
    return sum(loss * count for loss, count in losses) / samples if samples else None
