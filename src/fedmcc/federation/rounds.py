"""The only round loop. Centralized training is a federation of one client."""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fedmcc.errors import InputError
from fedmcc.federation.engines.base import Engine, Outcome
from fedmcc.federation.privacy import PrivateAggregator, draw_secretly
from fedmcc.federation.update_checks import Refused, checker_for
from fedmcc.messages import StateLost, Task, Unsent, Update, pack, unpack
from fedmcc.methods.base import Stage
from fedmcc.numerics.randomness import derive
from fedmcc.numerics.state_dicts import State, select
from fedmcc.training.loop import Step
from fedmcc.training.timing import timed


@dataclass(frozen=True)
class Federation:
    """Options of the server's rounds."""

    fraction: float = 1.0  # of the clients, drawn at random for each round
    count: int | None = None  # number of clients drawn for each round, instead of fraction
    only: int | None = None  # train this client only: the paper's single-client baseline
    minimum: int = 1  # accepted updates that a round needs
    attempts: int = 3  # at a round before it fails, each with newly drawn clients
    norm_limit: float = 10.0  # refuse updates beyond this multiple of the median distance; inf: none
    half: bool = False  # send weights in half precision

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(f"federation.fraction is {self.fraction}: give a number above 0, up to 1.")
        for name in ("count", "minimum", "attempts"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"federation.{name} is {value}: give 1 or more.")
        if not self.norm_limit > 1:  # also true for nan
            raise InputError(f"federation.norm_limit is {self.norm_limit}: give a number above 1, or inf.")

    def size(self, registered: int) -> int:
        """The number of clients that take part in a round, out of those registered."""
        size = self.count or max(1, math.floor(self.fraction * registered + 0.5))
        size = 1 if self.only is not None else size
        if size > registered:
            raise InputError(
                f"federation.count is {size}, but there are only {registered} clients: lower it."
            )
        if size < self.minimum:
            raise InputError(
                f"federation.minimum is {self.minimum}, but {size} clients take part in a round: "
                "lower it or let more take part."
            )
        return size


@dataclass(frozen=True)
class Policy:
    """The options of the rounds, the seed for drawing participants, and the aggregator with privacy."""

    federation: Federation = Federation()
    seed: int = 0
    aggregator: PrivateAggregator = field(default_factory=PrivateAggregator)

    @property
    def norm_limit(self) -> float:
        """The norm limit; infinite if updates are clipped, because its median would depend on all clients."""
        return self.federation.norm_limit if self.aggregator.privacy.clip is None else math.inf

    def draw(self, clients: Sequence[int], *place: int | str) -> list[int]:
        """The participants at a place such as (stage, round, attempt), sorted.

        They depend only on the clients, the place and the seed, or with noise on the server's secret, because
        every client knows the seed. The engine and interruptions do not change them.
        """
        size = self.federation.size(len(clients))
        if size == len(clients):
            return sorted(clients)
        if self.aggregator.privacy.draws_secretly:
            return draw_secretly(self.aggregator.secret, clients, size, "/".join(map(str, place)))
        generator = np.random.default_rng(derive(self.seed, "participants", *place))
        return sorted(clients[index] for index in generator.choice(len(clients), size, replace=False))


Holders = Mapping[str, frozenset[int]]  # a frozen part -> the clients that hold its global values


@dataclass(frozen=True, eq=False)
class Progress:
    """The server's complete state after a round, from which training can resume."""

    model: State  # the global network
    stage: str = ""
    round: int = 0
    extras: State = field(default_factory=dict)  # sent with the next tasks
    holders: Holders = field(default_factory=dict)  # of the stage's frozen parts


class Traffic(NamedTuple):
    """Bytes sent to a client and received from it."""

    down: int
    up: int


@dataclass(frozen=True, eq=False)
class Round:
    """The result of a round; traffic, refused and dropped include all its attempts."""

    progress: Progress
    updates: tuple[Update, ...]  # accepted, sorted by client
    refused: tuple[Refused, ...]
    dropped: tuple[int, ...]  # drawn clients that did not answer
    attempt: int  # number of the successful attempt, from 1
    loss: float | None  # mean over images; None if the stage trains nothing
    traffic: dict[int, Traffic]  # by client
    seconds: float

    @property
    def bytes_down(self) -> int:
        """Bytes sent to all clients."""
        return sum(traffic.down for traffic in self.traffic.values())

    @property
    def bytes_up(self) -> int:
        """Bytes received from all clients, including refused updates."""
        return sum(traffic.up for traffic in self.traffic.values())


class RoundFailedError(ArithmeticError):
    """A round had too few accepted updates in every attempt."""


def rounds(
    stage: Stage, progress: Progress, engine: Engine, clients: Sequence[int], policy: Policy | None = None
) -> Iterator[Step | Round]:
    """Run Algorithms 1 and 2 at the server, starting from `progress`; the caller saves and evaluates."""
    server = _Server(stage, engine, sorted(clients), policy or Policy())
    if progress.stage != stage.name:
        holders = {part: progress.holders.get(part, frozenset()) for part in stage.frozen}
        progress = Progress(progress.model, stage.name, holders=holders)
    while progress.round < stage.rounds:
        round = yield from server.round(progress)
        progress = round.progress
        yield round


class _Attempt(NamedTuple):
    updates: tuple[Update, ...]
    refused: tuple[Refused, ...]
    dropped: tuple[int, ...]
    state_lost: frozenset[int]


@dataclass(frozen=True, eq=False)
class _Server:
    stage: Stage
    engine: Engine
    clients: Sequence[int]
    policy: Policy

    def round(self, progress: Progress) -> Generator[Step, None, Round]:
        """Repeat attempts until enough updates are accepted; failed attempts affect only the statistics."""
        started, options = time.perf_counter(), self.policy.federation
        attempts: list[_Attempt] = []
        traffic: dict[int, Traffic] = {}
        while not attempts or len(attempts[-1].updates) < options.minimum:
            if len(attempts) == options.attempts:
                raise RoundFailedError(_failure(progress, attempts, options.minimum))
            drawn = self.policy.draw(self.clients, self.stage.name, progress.round + 1, len(attempts) + 1)
            attempts.append((yield from self._attempt(progress, drawn, traffic)))
            progress = replace(progress, holders=_without(progress.holders, attempts[-1].state_lost))
        updates = attempts[-1].updates
        with timed("averaging"):
            next_progress = _advance(self.stage, progress, updates, self.policy)
        return Round(
            progress=next_progress,
            updates=updates,
            refused=tuple(refused for attempt in attempts for refused in attempt.refused),
            dropped=tuple(client for attempt in attempts for client in attempt.dropped),
            attempt=len(attempts),
            loss=_mean_loss(updates),
            traffic=traffic,
            seconds=time.perf_counter() - started,
        )

    def _attempt(
        self, progress: Progress, clients: Sequence[int], traffic: dict[int, Traffic]
    ) -> Generator[Step, None, _Attempt]:
        options = self.policy.federation
        with timed("messages"):
            tasks = self._tasks(progress, clients)
        events = yield from self._events(tasks)
        answers = [event for event in events if isinstance(event, Update)]
        unreadable = [event for event in events if isinstance(event, Refused)]
        unsent = {event.client for event in events if isinstance(event, Unsent)}
        _add_traffic(traffic, [task for task in tasks if task.client not in unsent], answers)
        with timed("admission"):
            accepted, refused = checker_for(self.stage, tasks, self.policy.norm_limit).check(answers)
        enough = len(accepted) >= options.minimum
        self.engine.commit([update.client for update in accepted] if enough else [])
        answered = {update.client for update in answers} | {refused.client for refused in unreadable}
        return _Attempt(
            updates=tuple(update.unpacked() for update in accepted) if options.half else accepted,
            refused=tuple(sorted({*refused, *unreadable})),
            dropped=tuple(client for client in clients if client not in answered),
            state_lost=frozenset(event.client for event in events if isinstance(event, StateLost)),
        )

    def _tasks(self, progress: Progress, clients: Sequence[int]) -> list[Task]:
        half, stage = self.policy.federation.half, self.stage
        model = pack(progress.model) if half else progress.model
        weights: dict[tuple[str, ...], State] = {}  # by missing parts: clients that miss the same share it
        tasks = []
        for client in clients:
            missing = tuple(part for part in stage.frozen if client not in progress.holders.get(part, ()))
            if missing not in weights:
                weights[missing] = select(model, (*missing, *stage.shared))
            tasks.append(
                Task(client, stage.name, progress.round + 1, weights[missing], progress.extras, half)
            )
        return tasks

    def _events(self, tasks: Sequence[Task]) -> Generator[Step, None, list[Outcome]]:
        events: list[Outcome] = []
        for event in self.engine.run(self.stage, tasks):
            if isinstance(event, Step):
                yield event
            else:
                events.append(event)
        return events


def _add_traffic(traffic: dict[int, Traffic], tasks: Sequence[Task], answers: Sequence[Update]) -> None:
    none = Traffic(0, 0)
    for task in tasks:
        down, up = traffic.get(task.client, none)
        traffic[task.client] = Traffic(down + task.bytes, up)
    for update in answers:
        down, up = traffic.get(update.client, none)
        traffic[update.client] = Traffic(down, up + update.bytes)


def _failure(progress: Progress, attempts: Sequence[_Attempt], minimum: int) -> str:
    last = attempts[-1]
    reasons = [f"client {client}: {reason[:1].lower()}{reason[1:-1]}" for client, reason in last.refused]
    reasons += [f"client {client} did not answer" for client in last.dropped]
    return (
        f"Round {progress.round + 1} of the stage {progress.stage} failed {len(attempts)} times: "
        f"{len(last.updates)} updates were accepted, {minimum} needed ({'; '.join(reasons[:3])})."
    )


def _advance(stage: Stage, progress: Progress, updates: Sequence[Update], policy: Policy) -> Progress:
    sent = unpack(pack(progress.model)) if policy.federation.half else progress.model
    combined = policy.aggregator.combine(stage, updates, sent, progress.round + 1)
    return replace(
        progress,
        model={**progress.model, **combined.weights},
        round=progress.round + 1,
        extras=combined.extras,
        holders=_new_holders(stage, progress, combined.weights, updates),
    )


def _new_holders(stage: Stage, progress: Progress, weights: State, updates: Sequence[Update]) -> Holders:
    """Clients that answered hold the frozen parts; no client holds a part that the server changed."""
    clients = {update.client for update in updates}
    return {
        part: frozenset()
        if select(progress.model, (part,)).keys() & weights.keys()
        else progress.holders.get(part, frozenset()) | clients
        for part in stage.frozen
    }


def _without(holders: Holders, clients: frozenset[int]) -> Holders:
    return {part: holding - clients for part, holding in holders.items()}


def _mean_loss(updates: Sequence[Update]) -> float | None:
    losses = [(update.loss, update.samples) for update in updates if update.loss is not None]
    samples = sum(count for _, count in losses)
    return sum(loss * count for loss, count in losses) / samples if samples else None
