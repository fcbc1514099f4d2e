"""Clients in this process, one after the other: for a single client and for simulations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedmcc.federation.client import Client
from fedmcc.federation.engines.base import ClientErrors, Simulation
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import add_prefix, detached
from fedmcc.training.loop import Step
from fedmcc.training.memory import memory_size


@dataclass(frozen=True)
class EmbeddedOptions:
    """Clients train in this process, one after the other."""

    memory: str = "1GB"  # for client states; the rest is in files

    def __post_init__(self) -> None:
        memory_size(self.memory)

    def resolve(self) -> "EmbeddedOptions":
        """The options unchanged; none depends on the machine."""
        return self

    def build(self, net: Network, make: Callable[[], Network], clients: Sequence[Client]) -> "Embedded":
        """The engine; `make` is not used because one network is enough."""
        return Embedded(net, clients, memory_size(self.memory))


class Embedded(Simulation):
    """Runs all clients on one network, into which each client's state is loaded."""

    def __init__(
        self, net: Network, clients: Sequence[Client], memory: int = memory_size(EmbeddedOptions.memory)
    ) -> None:
        super().__init__(clients, memory)
        self.net = net
        self.initial = add_prefix("net", detached(net.state_dict()))

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Run the tasks one after the other."""
        errors, answered = ClientErrors(), 0
        for task in tasks:
            state = self.states.get(task.client, self.initial)
            try:
                update, new = yield from self.clients[task.client].answer(self.net, stage, task, state)
            except Exception as error:
                errors.add(task, error)
                continue
            self.states.set_pending(task.client, new)
            answered += 1
            yield update
        errors.report(answered)
