"""The only round loop. Centralized training is a federation of one client."""

import logging
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedmcc.federation.engines.base import Engine, Outcome
from fedmcc.federation.policy import Policy
from fedmcc.federation.traffic import Traffic, add_traffic
from fedmcc.federation.update_checks import Refused, checker_for, value_error
from fedmcc.messages import Discarded, StateLost, Task, Unmasked, Unsent, Update, pack, unpack
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State, select
from fedmcc.training.loop import Step
from fedmcc.training.timing import timed

log = logging.getLogger(__name__)


Holders = Mapping[str, frozenset[int]]  # a frozen part -> the clients that hold its global values


@dataclass(frozen=True, eq=False)
class Progress:
    """The server's complete state after a round, from which training can resume."""

    model: State  # the global network
    stage: str = ""
    round: int = 0
    extras: State = field(default_factory=dict)  # sent with the next tasks
    holders: Holders = field(default_factory=dict)  # of the stage's frozen parts


@dataclass(frozen=True, eq=False)
class Round:
    """The result of a round; traffic, refused and dropped include all its attempts.

    A skipped round has no updates and leaves the model as it was.
    """

    progress: Progress
    updates: tuple[Update, ...]  # accepted, sorted by client
    refused: tuple[Refused, ...]
    dropped: tuple[int, ...]  # drawn clients that did not answer
    attempt: int  # number of the successful attempt, from 1
    loss: float | None  # mean over images; None if the stage trains nothing
    traffic: dict[int, Traffic]  # by client
    seconds: float
    skipped: str = ""  # why the updates cannot be used; empty if they are

    @property
    def bytes_down(self) -> int:
        """Bytes sent to all clients."""
        return sum(traffic.down for traffic in self.traffic.values())

    @property
    def bytes_up(self) -> int:
        """Bytes received from all clients, including refused updates."""
        return sum(traffic.up for traffic in self.traffic.values())


class RoundFailedError(ArithmeticError):
    """Every attempt at a round had too few accepted updates, or no model could be computed from them."""


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
    holders: Holders
    result: Progress | Exception | None  # None: too few updates; an error: they cannot be combined
    unmasked: bool  # with secure aggregation, clients do not reveal the sum of other clients in this round


@dataclass(frozen=True, eq=False)
class _Server:
    stage: Stage
    engine: Engine
    clients: Sequence[int]
    policy: Policy

    def round(self, progress: Progress) -> Generator[Step, None, Round]:
        """Repeat attempts until enough updates are accepted; failed attempts affect only the statistics.

        A round whose sum is unmasked and cannot be used is skipped if it trains: later rounds make up for it.
        """
        started, options = time.perf_counter(), self.policy.federation
        attempts: list[_Attempt] = []
        traffic: dict[int, Traffic] = {}
        result, skipped = None, ""
        while result is None:
            if len(attempts) == options.attempts:
                raise _failure(progress, attempts, options.fewest)
            number, attempt = progress.round + 1, len(attempts) + 1
            clients = self.policy.participants(self.stage, self._registered(), number, attempt)
            attempts.append((yield from self._attempt(progress, clients, traffic)))
            progress = replace(progress, holders=attempts[-1].holders)
            if isinstance(attempts[-1].result, Progress):
                result = attempts[-1].result
            elif attempts[-1].unmasked and self.stage.trained:
                result, skipped = replace(progress, round=number), _reason_to_skip(attempts[-1])
                log.warning("Round %d of the stage %s is skipped: %s", number, self.stage.name, skipped)
        self._warn_of_missing(attempts[-1].updates)
        return Round(
            progress=result,
            updates=() if skipped else attempts[-1].updates,
            refused=tuple(refused for attempt in attempts for refused in attempt.refused),
            dropped=tuple(client for attempt in attempts for client in attempt.dropped),
            attempt=len(attempts),
            loss=None if skipped else _mean_loss(attempts[-1].updates),
            traffic=traffic,
            seconds=time.perf_counter() - started,
            skipped=skipped,
        )

    def _registered(self) -> list[int]:
        """The clients from which participants are drawn, with those that joined during the run."""
        newcomers = self.engine.newcomers() if self.policy.federation.only is None else []
        return sorted({*self.clients, *newcomers})

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
        discarded = [event for event in events if isinstance(event, Discarded)]
        add_traffic(traffic, [task for task in tasks if task.client not in unsent], [*answers, *discarded])
        with timed("admission"):
            checker = checker_for(self.stage, tasks, self.policy.limits, self.engine.samples)
            accepted, refused = checker.check(answers)
        updates = tuple(update.unpacked() for update in accepted) if options.half else accepted
        holders = _without(
            progress.holders, {event.client for event in events if isinstance(event, StateLost)}
        )
        result = self._advance(replace(progress, holders=holders), updates)
        self.engine.commit([update.client for update in updates] if isinstance(result, Progress) else [])
        answered = {update.client for update in answers} | {refused.client for refused in unreadable}
        return _Attempt(
            updates=updates,
            refused=tuple(sorted({*refused, *unreadable})),
            dropped=tuple(client for client in clients if client not in answered),
            holders=holders,
            result=result,
            unmasked=any(isinstance(event, Unmasked) for event in events),
        )

    def _advance(self, progress: Progress, updates: Sequence[Update]) -> Progress | Exception | None:
        """The progress after the server's step; an error, if values of the updates make it fail."""
        if len(updates) < self.policy.federation.fewest:
            return None
        try:
            with timed("averaging"):
                return _advance(self.stage, progress, updates, self.policy)
        except Exception as error:  # whatever clients send, the attempt fails with a sentence
            log.debug("The updates cannot be combined.", exc_info=True)
            return error

    def _warn_of_missing(self, updates: Sequence[Update]) -> None:
        """Warn if statistics lack clients: later rounds gather them only where a stage has several."""
        missing = sorted(set(self._registered()) - {update.client for update in updates})
        if missing and not self.stage.trained:
            log.warning(
                "The images of client %s are missing from the stage %s, and so from the clusters: "
                "no valid update arrived.",
                ", ".join(map(str, missing)),
                self.stage.name,
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


def _reason_to_skip(attempt: _Attempt) -> str:
    """Why an unmasked sum cannot be used, as a sentence."""
    if isinstance(attempt.result, Exception):
        return f"the updates cannot be combined ({type(attempt.result).__name__}: {attempt.result})."
    if not attempt.refused:
        return "clients have revealed its sum already, and reveal no other one."
    clients, reasons = zip(*attempt.refused, strict=True)
    if len(set(reasons)) > 1 or len(clients) == 1:
        return " ".join(f"Client {client}: {reason}" for client, reason in attempt.refused[:3])
    names = ", ".join(map(str, clients))
    return f"{reasons[0]} This is the sum of the clients {names}, which does not show whose update is wrong."


def _failure(progress: Progress, attempts: Sequence[_Attempt], minimum: int) -> RoundFailedError:
    last = attempts[-1]
    failed = f"Round {progress.round + 1} of the stage {progress.stage} failed {len(attempts)} times"
    if isinstance(last.result, Exception):
        kind = type(last.result).__name__
        return RoundFailedError(f"{failed}: the updates cannot be combined ({kind}: {last.result}).")
    reasons = [f"client {client}: {reason[:1].lower()}{reason[1:-1]}" for client, reason in last.refused]
    reasons += [f"client {client} did not answer" for client in last.dropped]
    return RoundFailedError(
        f"{failed}: {len(last.updates)} updates were accepted, {minimum} needed ({'; '.join(reasons[:3])})."
    )


def _advance(stage: Stage, progress: Progress, updates: Sequence[Update], policy: Policy) -> Progress:
    sent = unpack(pack(progress.model)) if policy.federation.half else progress.model
    combined = policy.aggregator.combine(policy.at_server(stage), updates, sent, progress.round + 1)
    next_sent = pack(combined.weights) if policy.federation.half else combined.weights
    if reason := value_error(next_sent) or value_error(combined.extras):
        raise ArithmeticError(f"the new {reason.removeprefix('Its ').removesuffix('.')}")
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


def _without(holders: Holders, clients: Collection[int]) -> Holders:
    return {part: holding.difference(clients) for part, holding in holders.items()}


def _mean_loss(updates: Sequence[Update]) -> float | None:
    """The mean over images; the checks bound losses and numbers of images, so that no sum overflows."""
    losses = [(update.loss, update.samples) for update in updates if update.loss is not None]
    samples = sum(count for _, count in losses)
    return sum(loss * count for loss, count in losses) / samples if samples else None
