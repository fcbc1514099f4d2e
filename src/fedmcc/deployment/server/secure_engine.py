"""The engine of a federation with secure aggregation: four messages to each site in every attempt at a round.

What arrives are masked vectors; the only numbers of updates that this process ever has are their sum, and
integers such as counts of steps.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from fedmcc.federation.engines.base import Event
from fedmcc.federation.public_average import counters
from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.vectors import Layout, Weighting, layout_of
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import Discarded, Task, Unsent, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import select

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
    updates: dict[int, Update] = field(default_factory=dict)  # without their weights
    overhead: dict[int, int] = field(default_factory=dict)  # bytes of answers besides the masked vectors


class SecureSiteEngine(SiteEngine):
    """Trains at sites, of whose updates the server learns the sum only.

    With `equal`, sites count equally, as clipped updates do.
    """

    def __init__(self, sites: Membership, header: TaskHeader, batch_size: int, equal: bool) -> None:
        super().__init__(sites, header, batch_size)
        self.equal = equal
        self._exchange: Exchange | None = None

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Agree with the sites on masks, let them train, and unmask the sum of what they send."""
        if stage.additive(select(tasks[0].weights, stage.shared)) is None:  # the recipe has open_statistics
            yield from super().run(stage, tasks)
            return
        self._wait_for_sites(tasks)
        exchange = self._begin(stage, tasks)
        ready = self._agree(exchange)
        yield from (Unsent(task.client) for task in tasks if task.client not in ready)
        if ready:
            yield from self._collect(exchange, super().run(stage, [exchange.tasks[each] for each in ready]))
            yield from self._unmask(exchange)
        yield from (Discarded(*each) for each in exchange.overhead.items())

    def _begin(self, stage: Stage, tasks: Sequence[Task]) -> Exchange:
        """An attempt with all sites that are available."""
        available = {}
        for task in tasks:
            if reason := self._unavailable(task):
                self._drop(task, reason)
            else:
                available[task.client] = task
        images = {client: self._hello(task).samples for client, task in available.items()}
        attempt = Attempt(self.header.run, stage.name, tasks[0].round, secrets.token_hex(16), images)
        self._exchange = Exchange(
            attempt, layout_of(stage, tasks[0].weights, Weighting(images, self.equal)), available
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
        asked = dict.fromkeys(received, received)
        revealed = self._ask(exchange, "reveal", asked, masking_records.unpack_revealed)
        try:
            for client, shares in revealed.items():  # a wrong share is ignored: others may suffice
                self._try(exchange, client, partial(collector.add_revealed, client, shares))
            average = exchange.layout.decode(collector.total(), received)
        except ProtocolError as error:
            for client in received:
                self._drop(exchange.tasks[client], str(error))
            return
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
        seconds = min(EXCHANGE_SECONDS, self.sites.policy.round_timeout)
        until = time.monotonic() + seconds
        waiting = self._send_step(exchange, kind, contents, seconds)
        answers: dict[int, Answer] = {}
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
            self.sites.update()
            if len(waiting) == count:
                pause(began, until)
        for message, client in waiting.items():
            self.mailbox.forget(message)
            self._drop(exchange.tasks[client], f"it did not reply within {seconds:g} seconds.")
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
