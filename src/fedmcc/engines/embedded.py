"""Clients in this process, one after the other: for one owner, and for simulations."""

from collections.abc import Iterator, Sequence

from fedmcc.client import Client
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.states import State, detached, prefixed
from fedmcc.training import Step


class Embedded:
    """All clients share one network as a workbench; what each remembers lies in `states`."""

    def __init__(self, net: Network, clients: Sequence[Client]) -> None:
        self.net = net
        self.clients = {client.index: client for client in clients}
        self.initial = prefixed("net", detached(net.state_dict()))
        self.states: dict[int, State] = {}

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Let the clients answer in turn."""
        for task in tasks:
            state = self.states.get(task.client, self.initial)
            answer = self.clients[task.client].answer(self.net, stage, task, state)
            update, self.states[task.client] = yield from answer
            yield update
