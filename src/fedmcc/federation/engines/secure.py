"""Secure aggregation in a simulation: wraps an engine and passes on only the average of its updates."""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmcc.federation.engines.base import Engine, Event, log_dropout
from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.participant import Participant
from fedmcc.federation.secure_aggregation.vectors import Weighting, layout_of
from fedmcc.messages import Discarded, StageRound, Task, Unmasked, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State, select


class SecureEngine(Engine):
    """An engine whose updates all have their average as weights, which is then also the server's mean.

    With `clip`, all clients have the same weight. Integers are left as they are, and so are stages with
    statistics that cannot be added up, if the recipe allows them.
    """

    def __init__(self, inner: Engine, clip: float | None) -> None:
        self.inner, self.clip = inner, clip

    @property
    def members(self) -> list[int]:
        """Indices of all clients, sorted."""
        return self.inner.members

    def images_per_epoch(self, client: int) -> int:
        """Number of images that a client trains on in an epoch."""
        return self.inner.images_per_epoch(client)

    def samples(self, client: int) -> int | None:
        """Number of a client's images."""
        return self.inner.samples(client)

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Start from a run's saved client states."""
        self.inner.begin(folder, files, last)

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Run the tasks; clients that do not answer drop out after they have shared their secrets."""
        if stage.additive(select(tasks[0].weights, stage.shared)) is None:
            yield from self.inner.run(stage, tasks)
            return
        exchange = Exchange(stage, tasks, self._weighting(tasks))
        updates = []
        for event in self.inner.run(stage, tasks):
            if isinstance(event, Update):
                updates.append(event)
            else:
                yield event
        if updates:
            yield from exchange.combine(updates)

    def commit(self, accepted: Collection[int]) -> None:
        """Keep the pending states of these clients."""
        self.inner.commit(accepted)

    def client_states(self, clients: Iterable[int]) -> Iterator[tuple[int, State]]:
        """The states of these clients."""
        return self.inner.client_states(clients)

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Record that the states of these clients are saved in these files."""
        self.inner.mark_saved(files)

    def facts(self) -> dict[str, Any]:
        """Entries of the wrapped engine for the metrics row."""
        return self.inner.facts()

    def close(self) -> None:
        """Stop everything that the engine runs."""
        self.inner.close()

    def _weighting(self, tasks: Sequence[Task]) -> Weighting:
        return Weighting({task.client: self.inner.samples(task.client) or 1 for task in tasks}, self.clip)


class Exchange:
    """The messages between clients and server in one attempt at a round."""

    def __init__(self, stage: Stage, tasks: Sequence[Task], weighting: Weighting) -> None:
        self.tasks = {task.client: task for task in tasks}
        self.layout = layout_of(stage, tasks[0].weights, weighting)
        self.context = f"{stage.name} {tasks[0].round} {secrets.token_hex(16)}".encode()
        self.people = {client: Participant(client, self.context) for client in self.tasks}
        self.overhead = dict.fromkeys(self.tasks, 0)  # bytes that each client sends besides its vector

    def combine(self, updates: Sequence[Update]) -> Iterator[Event]:
        """The updates with the average as their weights; none if too few clients are left."""
        try:
            collector = self._collect(updates)
            average = self.layout.decode(collector.total(), collector.received)
        except ProtocolError as error:
            for update in updates:
                log_dropout(self.tasks[update.client], str(error))
            return
        yield Unmasked()
        for update in updates:
            if update.client in collector.received:
                yield average.replace_in(update)
                yield Discarded(update.client, self.overhead[update.client] + self.layout.extra_bytes)

    def _collect(self, updates: Sequence[Update]) -> Collector:
        """The server's side, after all messages of the protocol."""
        keys = {client: person.public_keys for client, person in self.people.items()}
        collector = Collector(self.context, keys, len(self.layout))
        for client, person in self.people.items():
            shares = person.share(keys, collector.threshold)
            collector.add_shares(client, shares)
            self.overhead[client] += sum(map(len, keys[client])) + shares.bytes
        for update in updates:
            self._add(collector, update)
        received = collector.close()
        for client in received:
            self.people[client].confirm(received)
        for client in received:
            revealed = self.people[client].reveal(received)
            collector.add_revealed(client, revealed)
            self.overhead[client] += revealed.bytes
        return collector

    def _add(self, collector: Collector, update: Update) -> None:
        """Mask an update; one with numbers that cannot be sent drops out."""
        client = update.client
        try:
            values = self.layout.encode(update)
        except ProtocolError as error:
            log_dropout(self.tasks[client], str(error))
            return
        collector.add_masked(client, self.people[client].mask(values, collector.sealed_for(client)))
