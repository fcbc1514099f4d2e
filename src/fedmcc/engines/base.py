"""What the engines that simulate clients have in common."""

import logging
from collections.abc import Collection, Iterator, Sequence

from fedmcc.client import Client
from fedmcc.engines.store import Store
from fedmcc.errors import InputError
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.training import Step

log = logging.getLogger(__name__)


class Simulation:
    """Clients on this machine; what each remembers between rounds lies in `states`.

    Workers and files are there from the first round until `close`; a closed engine may run again.
    """

    def __init__(self, clients: Sequence[Client], memory: int) -> None:
        self.clients = {client.index: client for client in clients}
        self.states = Store(memory)

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Let the clients answer; what they would remember waits for `commit`."""
        raise NotImplementedError

    def commit(self, accepted: Collection[int]) -> None:
        """What these clients remember of the last run counts; the others fall back to before it."""
        self.states.settle(accepted)

    def close(self) -> None:
        """End whatever runs and forget what clients remember."""
        self.states.close()
        for client in self.clients.values():
            client.cache.clear()

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
