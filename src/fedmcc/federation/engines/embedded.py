"""Clients in this process, one after the other: for one owner, and for simulations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedmcc.federation.client import Client
from fedmcc.federation.engines.base import Failures, Simulation
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import add_prefix, detached
from fedmcc.training.loop import Step
from fedmcc.training.memory import memory_size


@dataclass(frozen=True)
class EmbeddedOptions:
    """Clients train in this process, one after the other."""

    memory: str = "1GB"  # for what clients remember; beyond it lies in files

    def __post_init__(self) -> None:
        memory_size(self.memory)

    def resolve(self) -> "EmbeddedOptions":
        """Nothing in it depends on the machine."""
        return self

    def build(self, net: Network, make: Callable[[], Network], clients: Sequence[Client]) -> "Embedded":
        """The engine; `make` is for those that need more than one network."""
        return Embedded(net, clients, memory_size(self.memory))


class Embedded(Simulation):
    """All clients share one network as a workbench."""

    def __init__(
        self, net: Network, clients: Sequence[Client], memory: int = memory_size(EmbeddedOptions.memory)
    ) -> None:
        super().__init__(clients, memory)
        self.net = net
        self.initial = add_prefix("net", detached(net.state_dict()))

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Let the clients answer in turn."""
        failures, answered = Failures(), 0
        for task in tasks:
            state = self.states.get(task.client, self.initial)
            try:
                update, new = yield from self.clients[task.client].answer(self.net, stage, task, state)
            except Exception as error:
                failures.add(task, error)
                continue
            self.states.propose(task.client, new)
            answered += 1
            yield update
        failures.end(answered)
