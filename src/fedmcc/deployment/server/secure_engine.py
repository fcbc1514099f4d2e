"""The engine of a federation with secure aggregation: five messages to each site in every attempt at a round.

What arrives are masked vectors; the only numbers of updates that this process ever has are their sum, and
integers such as counts of steps.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import RecordDict

from fedmcc.deployment.flower import masking_records
from fedmcc.deployment.flower.masking_records import MASKED
from fedmcc.deployment.flower.records import Failure, UnreadableError
from fedmcc.deployment.messages import Attempt, Peer, SiteTask
from fedmcc.deployment.server.mailbox import Fault, Letter, Received
from fedmcc.deployment.server.membership import Membership
from fedmcc.deployment.server.site_engine import SiteEngine, TaskHeader, pause
from fedmcc.deployment.server.unmasked import UnmaskedRound
from fedmcc.federation.engines.base import Event
from fedmcc.federation.public_average import counters
from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.vectors import (
    Layout,
    Weighting,
    hash_of_sent,
    layout_of,
)
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import Discarded, StageRound, Task, Unmasked, Unsent, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import select

log = logging.getLogger(__name__)

EXCHANGE_SECONDS = 120.0  # in which a site must answer a message without training, at most
MAX_REPLY = 4 * 2**20  # bytes of such an answer; 500 sites share their secrets in a tenth of it

Answer = TypeVar("Answer")
Read = Callable[[RecordDict], Answer | Failure]


@dataclass
class Exchange:
    """One attempt at a round, from the keys of its sites to the sum of their updates."""

    attempt: Attempt
    layout: Layout
    tasks: dict[int, Task]
    collector: Collector | None = None
    collected: set[int] = field(default_factory=set)  # clients that share their secrets
    failed: set[int] = field(default_factory=set)  # those of them whose vectors did not arrive
    updates: dict[int, Update] = field(default_factory=dict)  # without their weights
    overhead: dict[int, int] = field(default_factory=dict)  # bytes of answers besides the masked vectors


class SecureSiteEngine(SiteEngine):
    """Trains at sites, of whose updates the server learns the sum only, and one sum in each round.

    A sum is on disk before it is used: a server that dies in between uses it when it is started again.
    """

    def __init__(
        self, sites: Membership, header: TaskHeader, batch_size: int, clip: float | None, fewest: int
    ) -> None:
        super().__init__(sites, header, batch_size)
        self.clip, self.fewest = clip, fewest
        self._exchange: Exchange | None = None
        self._failed: tuple[StageRound, set[int]] | None = None  # sites that broke the last attempt
        self._restarted = False

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Store the last averaged round of each client, and where an unmasked round is saved."""
        super().begin(folder, files, last)
        self._unmasked, self._restarted = UnmaskedRound(folder), True

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Agree with the sites on masks, let them train, and unmask the sum of what they send."""
        if stage.additive(select(tasks[0].weights, stage.shared)) is None:  # the recipe has open_statistics
            yield from super().run(stage, tasks)
            return
        place = StageRound(stage.name, tasks[0].round)
        restarted, self._restarted = self._restarted, False
        asked = self._unmasked.asked(place)
        if restarted and (updates := self._unmasked.load(place)):
            self._current = dict.fromkeys([update.client for update in updates], place)
            yield from (Unsent(task.client) for task in tasks)
            yield Unmasked()
            yield from updates
            return
        if asked is not None and stage.trained:
            yield from (Unsent(task.client) for task in tasks)
            yield Unmasked()
            return
        chosen = [task for task in tasks if asked is None or task.client in asked]
        self._wait_for_sites(chosen)
        exchange = self._begin(stage, self._without_failed(chosen, place))
        ready = self._agree(exchange)
        yield from (Unsent(task.client) for task in tasks if task.client not in ready)
        if ready:
            yield from self._collect(exchange, super().run(stage, [exchange.tasks[each] for each in ready]))
            yield from self._unmask(exchange)
        self._failed = (place, exchange.failed)
        yield from (Discarded(*each) for each in exchange.overhead.items())

    def _without_failed(self, tasks: list[Task], place: StageRound) -> list[Task]:
        """The tasks without those of sites that broke the last attempt at this round, if enough are left."""
        failed = self._failed[1] if self._failed and self._failed[0] == place else set()
        left = [task for task in tasks if task.client not in failed]
        return left if len(left) >= self.fewest else tasks

    def _begin(self, stage: Stage, tasks: Sequence[Task]) -> Exchange:
        """An attempt with all sites that are available."""
        available = {}
        for task in tasks:
            if reason := self._unavailable(task):
                self._drop(task, reason)
            else:
                available[task.client] = task
        images = {client: self._hello(task).samples for client, task in available.items()}
        sent, token = hash_of_sent(stage, tasks[0]), secrets.token_hex(16)
        attempt = Attempt(self.header.run, stage.name, tasks[0].round, token, sent, images)
        self._exchange = Exchange(
            attempt, layout_of(stage, tasks[0].weights, Weighting(images, self.clip)), available
        )
        return self._exchange

    def _agree(self, exchange: Exchange) -> list[int]:
        """Exchange keys and shares; returns the clients that can mask their updates."""
        begun = {client: client for client in exchange.tasks}
        keys = self._ask(exchange, "keys", begun, masking_records.unpack_keys)
        peers = {
            client: Peer(self._name(client), own, signature, self._registered(client))
            for client, (own, signature) in keys.items()
        }
        table = masking_records.peers_table(peers)
        public = {client: peer.keys for client, peer in peers.items()}
        exchange.collector = Collector(exchange.attempt.context, public, len(exchange.layout))
        shares = self._ask(exchange, "shares", dict.fromkeys(peers, table), masking_records.unpack_shares)
        exchange.collected = set(peers)
        exchange.failed = exchange.collected - shares.keys()
        for client, own in shares.items():
            self._try(exchange, client, partial(exchange.collector.add_shares, client, own))
        return [
            client
            for client in shares
            if self._try(exchange, client, partial(exchange.collector.sealed_for, client))
        ]

    def _try(self, exchange: Exchange, client: int, step: Callable[[], object]) -> bool:
        """Whether a step of the protocol succeeds; otherwise the site drops out."""
        try:
            step()
        except ProtocolError as error:
            self._drop(exchange.tasks[client], str(error))
            return False
        return True

    def _collect(self, exchange: Exchange, events: Iterator[Event]) -> Iterator[Event]:
        """Add up the masked vectors; everything else of the updates is kept."""
        assert exchange.collector is not None
        for event in events:
            if not isinstance(event, Update):
                yield event
                continue
            try:
                exchange.collector.add_masked(event.client, _vector(event))
                exchange.updates[event.client] = replace(event, weights=counters(_without_vector(event)))
                self._count(exchange, event.client, exchange.layout.extra_bytes)
            except ProtocolError as error:
                yield Refused(event.client, str(error))
                yield Discarded(event.client, event.bytes)

    def _unmask(self, exchange: Exchange) -> Iterator[Event]:
        """The updates with the average as their weights; none if too few sites reveal their shares."""
        collector = exchange.collector
        assert collector is not None
        received = collector.close()
        exchange.failed = exchange.collected - set(received)
        lists = dict.fromkeys(received, received)
        signatures = self._ask(exchange, "confirm", lists, masking_records.unpack_confirmation)
        if len(signatures) < collector.threshold:
            reason = (
                f"{len(signatures)} sites confirm who is in the sum, but {collector.threshold} are needed."
            )
            for client in received:
                self._reasons.setdefault(str(client), reason)
            log.warning("%s, round %d: %s", exchange.attempt.stage, exchange.attempt.round, reason)
            return
        self._unmasked.ask(StageRound(exchange.attempt.stage, exchange.attempt.round), received)
        table = masking_records.sealed_table(signatures)
        asked = dict.fromkeys(signatures, table)
        revealed = self._ask(exchange, "reveal", asked, masking_records.unpack_revealed)
        yield Unmasked()
        try:
            for client, shares in revealed.items():  # a wrong share is ignored: others may suffice
                self._try(exchange, client, partial(collector.add_revealed, client, shares))
            average = exchange.layout.decode(collector.total(), received)
        except ProtocolError as error:
            for client in received:
                self._drop(exchange.tasks[client], str(error))
            return
        self._unmasked.save(average, [exchange.updates[client] for client in received])
        for client in received:
            self._reasons.pop(str(client), None)  # who did not reveal its shares has not dropped out
            yield average.replace_in(exchange.updates[client])

    def _site_task(self, task: Task) -> SiteTask:
        """The task with the shares of all sites for this one, if its update is masked."""
        plain, exchange = super()._site_task(task), self._exchange
        if exchange is None or exchange.collector is None or task.client not in exchange.tasks:
            return plain
        sealed = masking_records.sealed_table(exchange.collector.sealed_for(task.client))
        return plain._replace(masking=masking_records.attempt_text(exchange.attempt, sealed))

    def _ask(
        self, exchange: Exchange, kind: str, contents: Mapping[int, Any], read: Read[Answer]
    ) -> dict[int, Answer]:
        """The answers of sites to a step of the attempt, by client; who does not answer in time drops out."""
        limit, asked = min(EXCHANGE_SECONDS, self.sites.policy.round_timeout), time.monotonic()
        waiting, patience = self._send_step(exchange, kind, contents, limit), self._patience[kind]
        answers: dict[int, Answer] = {}
        until = asked + limit
        while waiting and time.monotonic() < until:
            began, count = time.monotonic(), len(waiting)
            for received in self.mailbox.receive(waiting, until):
                client = waiting.pop(received.sent)
                self._count(exchange, client, received.size)
                answer = _read(received, read)
                if isinstance(answer, Failure | Fault):
                    self._drop(exchange.tasks[client], answer.reason)
                else:
                    answers[client] = answer
                    patience.answered(client, time.monotonic() - asked)
            until = asked + patience.seconds(contents, waiting.values(), limit)
            self.sites.update()
            if len(waiting) == count:
                pause(began, until)
        for message, client in waiting.items():
            self.mailbox.forget(message)
            patience.gave_up(client)
            self._drop(
                exchange.tasks[client], f"it did not reply within {time.monotonic() - asked:.3g} seconds."
            )
        return dict(sorted(answers.items()))

    def _send_step(
        self, exchange: Exchange, kind: str, contents: Mapping[int, Any], seconds: float
    ) -> dict[str, int]:
        """Send a step of the attempt; returns the clients by the ids of their messages."""
        letters, clients = [], []
        for client, content in contents.items():
            if reason := self._unavailable(exchange.tasks[client]):
                self._drop(exchange.tasks[client], reason)
                continue
            node = self.sites.members[self._name(client)].node
            packed = masking_records.pack_attempt(exchange.attempt, content)
            letters.append(Letter(node, f"query.{kind}", packed, seconds, MAX_REPLY))
            clients.append(client)
        sent = self.mailbox.send(letters)
        for client, message in zip(clients, sent, strict=True):
            if not message:
                self._drop(exchange.tasks[client], "its message could not be sent.")
        return {message: client for client, message in zip(clients, sent, strict=True) if message}

    def _name(self, client: int) -> str:
        return self.sites.names[client]

    def _registered(self, client: int) -> bytes:
        """The public key of a site, for the other sites."""
        return self.mailbox.registered_key(self._name(client))

    def _count(self, exchange: Exchange, client: int, size: int) -> None:
        exchange.overhead[client] = exchange.overhead.get(client, 0) + size


def _read(received: Received, read: Read[Answer]) -> Answer | Failure | Fault:
    if isinstance(received.content, Fault):
        return received.content
    try:
        return read(received.content)
    except UnreadableError as error:
        return Fault(str(error), refused=True)


def _vector(update: Update) -> Any:
    """The masked vector of an update; raises ProtocolError if there is none, or numbers without masks."""
    vector = update.weights.get(MASKED)
    if vector is None or vector.dtype is not torch.int32 or vector.dim() != 1:
        raise ProtocolError("Its update has no masked vector.")
    if update.extras or counters(update.weights).keys() != update.weights.keys():
        raise ProtocolError("Its update has numbers without masks.")
    return vector.numpy().view(np.uint32)


def _without_vector(update: Update) -> dict[str, torch.Tensor]:
    return {name: value for name, value in update.weights.items() if name != MASKED}
