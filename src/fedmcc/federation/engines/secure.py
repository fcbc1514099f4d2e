"""Secure aggregation in a simulation: wraps an engine and passes on only the average of its updates."""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmcc.federation.engines.base import Engine, Event, log_dropout
from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.participant import Participant
from fedmcc.federation.secure_aggregation.quantise import Reals, decode, encode
from fedmcc.messages import Discarded, StageRound, Task, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State, select


class SecureEngine(Engine):
    """An engine whose updates all have their average as weights, which is then also the server's mean.

    With `equal`, all clients have the same weight, as clipped updates have. Integers are left as they are.
    """

    def __init__(self, inner: Engine, equal: bool) -> None:
        self.inner, self.equal = inner, equal

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
        exchange = Exchange(stage, tasks, self._shares(tasks))
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

    def _shares(self, tasks: Sequence[Task]) -> dict[int, float]:
        """The share of each client in the average, if all of them answer."""
        counts = {task.client: 1 if self.equal else self.inner.samples(task.client) or 1 for task in tasks}
        return {client: count / sum(counts.values()) for client, count in counts.items()}


class Exchange:
    """The messages between clients and server in one attempt at a round."""

    def __init__(self, stage: Stage, tasks: Sequence[Task], shares: Mapping[int, float]) -> None:
        self.tasks, self.shares = {task.client: task for task in tasks}, shares
        self.sent = {task.client: _floats(select(task.weights, stage.shared)) for task in tasks}
        self.context = f"{stage.name} {tasks[0].round} {secrets.token_hex(16)}".encode()
        self.people = {client: Participant(client, self.context) for client in shares}
        self.overhead = dict.fromkeys(shares, 0)  # bytes that each client sends besides its vector

    def combine(self, updates: Sequence[Update]) -> Iterator[Event]:
        """The updates with the average as their weights; none if too few clients are left."""
        try:
            collector = self._collect(updates)
            change = decode(collector.total()) / sum(self.shares[client] for client in collector.received)
        except ProtocolError as error:
            for update in updates:
                log_dropout(self.tasks[update.client], str(error))
            return
        for update in updates:
            if update.client in collector.received:
                average = _moved(self.sent[update.client], change)
                yield replace(update, weights={**update.weights, **average})
                yield Discarded(update.client, self.overhead[update.client])

    def _collect(self, updates: Sequence[Update]) -> Collector:
        """The server's side, after all messages of the protocol."""
        keys = {client: person.public_keys for client, person in self.people.items()}
        length = sum(value.numel() for value in next(iter(self.sent.values())).values())
        collector = Collector(self.context, keys, length)
        for client, person in self.people.items():
            shares = person.share(keys, collector.threshold)
            collector.add_shares(client, shares)
            self.overhead[client] += sum(map(len, keys[client])) + shares.bytes
        for update in updates:
            self._add(collector, update)
        received = collector.close()
        for client in received:
            revealed = self.people[client].reveal(received)
            collector.add_revealed(client, revealed)
            self.overhead[client] += revealed.bytes
        return collector

    def _add(self, collector: Collector, update: Update) -> None:
        """Mask an update; one with numbers that cannot be sent drops out."""
        client, sent = update.client, self.sent[update.client]
        change = np.concatenate(
            [np.empty(0), *(_flat(update.weights[name]) - _flat(sent[name]) for name in sent)]
        )
        try:
            values = encode(self.shares[client] * change)
        except ProtocolError as error:
            log_dropout(self.tasks[client], str(error))
            return
        collector.add_masked(client, self.people[client].mask(values, collector.sealed_for(client)))


def _floats(state: State) -> State:
    return {name: value for name, value in sorted(state.items()) if value.is_floating_point()}


def _flat(value: Tensor) -> Reals:
    return value.detach().double().flatten().numpy()


def _moved(sent: State, change: Reals) -> State:
    """The sent tensors, to which consecutive parts of the change are added."""
    parts = torch.split(torch.from_numpy(change), [value.numel() for value in sent.values()])
    return {
        name: (value.double() + part.view(value.shape)).to(value.dtype)
        for (name, value), part in zip(sent.items(), parts, strict=True)
    }
