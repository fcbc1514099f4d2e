"""The interface of all engines, and the common part of engines that simulate clients on one machine."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.client_states import ClientStates
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import Discarded, StageRound, StateLost, Task, Unmasked, Unsent, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import State
from fedmcc.training.loop import Step

log = logging.getLogger(__name__)

Outcome = Update | Refused | StateLost | Unsent | Discarded | Unmasked
Event = Step | Outcome


class Engine:
    """Runs the tasks of clients: yields their updates in any order, and training steps in between.

    A client that fails gives no update; an unreadable answer gives only a refusal. New client states are
    pending until `commit`.
    """

    @property
    def members(self) -> list[int]:
        """Indices of all clients, sorted."""
        raise NotImplementedError

    def newcomers(self) -> list[int]:
        """Indices of clients that were added since the engine was built, until now."""
        return []

    def images_per_epoch(self, client: int) -> int:
        """Number of images that a client trains on in an epoch."""
        raise NotImplementedError

    def samples(self, client: int) -> int | None:
        """Number of a client's images, with which its updates are compared; None: unknown."""
        return None

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Start from a run's saved client states and the last accepted round of each client.

        `folder` is for temporary files of the engine.
        """

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Run the tasks; the new client states are pending until `commit`."""
        raise NotImplementedError

    def commit(self, accepted: Collection[int]) -> None:
        """Keep the pending states of these clients; the other clients return to their previous states."""
        raise NotImplementedError

    def client_states(self, clients: Iterable[int]) -> Iterator[tuple[int, State]]:
        """The states of these clients, if the run has to save them."""
        return iter(())

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Record that the states of these clients are saved in these files."""

    def facts(self) -> dict[str, Any]:
        """Engine-specific entries for the metrics row of the last round."""
        return {}

    def close(self) -> None:
        """Stop everything that the engine runs."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Simulation(Engine):
    """An engine with all clients on this machine, whose states between rounds are in `states`.

    Workers and files exist from the first round until `close`; a closed engine can be used again.
    """

    def __init__(self, clients: Sequence[Client], memory: int) -> None:
        self.clients = {client.index: client for client in clients}
        self.states = ClientStates(memory)

    @property
    def members(self) -> list[int]:
        """Indices of all clients, sorted."""
        return sorted(self.clients)

    def images_per_epoch(self, client: int) -> int:
        """Number of images that a client trains on in an epoch."""
        return self.clients[client].images_per_epoch

    def samples(self, client: int) -> int:
        """Number of a client's images."""
        return len(self.clients[client].images)

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Start from the client states in these files."""
        self.states.begin(folder, files)

    def commit(self, accepted: Collection[int]) -> None:
        """Keep the pending states of these clients; the other clients return to their previous states."""
        self.states.commit(accepted)

    def client_states(self, clients: Iterable[int]) -> Iterator[tuple[int, State]]:
        """The states of these clients, loaded one after the other."""
        return ((client, self.states[client]) for client in clients)

    def mark_saved(self, files: Mapping[int, Path]) -> None:
        """Record that the states of these clients are saved in these files."""
        self.states.mark_saved(files)

    def close(self) -> None:
        """Stop everything that the engine runs, and delete the client states."""
        self.states.close()
        for client in self.clients.values():
            client.cache.clear()


class ClientErrors:
    """The errors of clients in one round: a failing client drops out; if all fail, the error is raised."""

    def __init__(self) -> None:
        self.errors: list[tuple[Task, Exception]] = []

    def add(self, task: Task, error: Exception) -> None:
        """Record the error of a client."""
        self.errors.append((task, error))

    def report(self, answered: int) -> None:
        """Log the errors, or raise the last one if no client answered."""
        if self.errors and not answered:
            raise self.errors[-1][1]
        for task, error in self.errors:
            expected = isinstance(error, InputError | ArithmeticError)  # their messages are sentences
            log_dropout(task, str(error) if expected else f"{type(error).__name__}: {error}")


def log_dropout(task: Task, reason: str) -> None:
    """Log that a client drops out of a round, and why."""
    log.warning("Client %d drops out of %s, round %d: %s", task.client, task.stage, task.round, reason)
