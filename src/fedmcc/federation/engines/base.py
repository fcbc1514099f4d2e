"""What a run asks of any engine, and what the engines that simulate clients have in common."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.client_states import Store
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import StageRound, StateLost, Task, Unsent, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State
from fedmcc.training.loop import Step

log = logging.getLogger(__name__)


Answer = Update | Refused | StateLost | Unsent
Event = Step | Answer


class Engine:
    """A map over clients: tasks in, updates out, in any order, with training steps between them.

    A client that fails gives no update; an answer that cannot be read gives a refusal alone.
    The new states of clients are pending until `commit`.
    """

    @property
    def members(self) -> list[int]:
        """The clients that there are, in order."""
        raise NotImplementedError

    def images_per_epoch(self, client: int) -> int:
        """Images of a client that the optimiser sees in an epoch."""
        raise NotImplementedError

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Start where a run stands: what clients remember in these files, and which rounds of theirs counted.

        The folder is for what the engine has to put aside.
        """

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Let the clients answer; what they would remember waits for `commit`."""
        raise NotImplementedError

    def commit(self, accepted: Collection[int]) -> None:
        """What these clients remember of the last run counts; the others fall back to before it."""
        raise NotImplementedError

    def client_states(self, clients: Iterable[int]) -> Iterator[tuple[int, State]]:
        """What these clients remember, if the run has to keep it for them."""
        return iter(())

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Know that what these clients remember lies in these files too."""

    def facts(self) -> dict[str, Any]:
        """What there is to say about the last round that only the engine knows."""
        return {}

    def close(self) -> None:
        """End whatever runs."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Simulation(Engine):
    """Clients on this machine; what each remembers between rounds lies in `states`.

    Workers and files are there from the first round until `close`; a closed engine may run again.
    """

    def __init__(self, clients: Sequence[Client], memory: int) -> None:
        self.clients = {client.index: client for client in clients}
        self.states = Store(memory)

    @property
    def members(self) -> list[int]:
        """The clients that there are, in order."""
        return sorted(self.clients)

    def images_per_epoch(self, client: int) -> int:
        """Images of a client that the optimiser sees in an epoch."""
        return self.clients[client].images_per_epoch

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Start from the states in these files."""
        self.states.begin(folder, files)

    def commit(self, accepted: Collection[int]) -> None:
        """What these clients remember of the last run counts; the others fall back to before it."""
        self.states.settle(accepted)

    def client_states(self, clients: Iterable[int]) -> Iterator[tuple[int, State]]:
        """What these clients remember, one after the other."""
        return ((client, self.states[client]) for client in clients)

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Know that what these clients remember lies in these files too."""
        self.states.mark_saved(files)

    def close(self) -> None:
        """End whatever runs and forget what clients remember."""
        self.states.close()
        for client in self.clients.values():
            client.cache.clear()


class Failures:
    """The errors of clients in one run: each costs its client the round, all together end it."""

    def __init__(self) -> None:
        self.errors: list[tuple[Task, Exception]] = []

    def add(self, task: Task, error: Exception) -> None:
        """A client has failed."""
        self.errors.append((task, error))

    def end(self, answered: int) -> None:
        """Tell of each; when nobody has answered, it is no client's own trouble and raised."""
        if self.errors and not answered:
            raise self.errors[-1][1]
        for task, error in self.errors:
            expected = isinstance(error, InputError | ArithmeticError)  # these say a whole sentence
            tell(task, str(error) if expected else f"{type(error).__name__}: {error}")


def tell(task: Task, reason: str) -> None:
    """Say who is left out of a round."""
    log.warning("Client %d drops out of %s, round %d: %s", task.client, task.stage, task.round, reason)
