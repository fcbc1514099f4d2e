"""A worker process of the pool: one network as a workbench, one client after the other."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.shared_images import SharedImages
from fedmcc.federation.engines.subprocesses import exit_with_parent
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State
from fedmcc.storage.safetensor_files import from_bytes, to_bytes
from fedmcc.training.loop import DivergedError, Step
from fedmcc.training.torch_setup import set_up_torch


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """All that a worker needs to be of use to any client."""

    make: Callable[[], Network]
    clients: Sequence[Client]  # without their images
    images: SharedImages
    initial: bytes  # what a client remembers that has never been asked


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """A task on its way to a worker, with what the client remembers."""

    stage: Stage
    task: Task
    weights: bytes
    extras: bytes
    state: bytes  # empty: it has never been asked


@dataclass(frozen=True, eq=False)
class Answer:
    """An update on its way back, with what the client would remember."""

    update: Update
    weights: bytes
    extras: bytes
    state: bytes


class WorkerTasks:
    """Makes orders of the tasks of a round; what many tasks share is packed once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._packed: dict[int, tuple[State, bytes]] = {}  # with the states: they must outlive their ids

    def of(self, task: Task, state: State | None) -> WorkerTask:
        """A task without tensors of its own beside the bytes of what they say."""
        remembered = b"" if state is None else to_bytes(state)
        bare = replace(task, weights={}, extras={})
        return WorkerTask(self.stage, bare, self._bytes(task.weights), self._bytes(task.extras), remembered)

    def _bytes(self, state: State) -> bytes:
        if id(state) not in self._packed:
            self._packed[id(state)] = state, to_bytes(state)
        return self._packed[id(state)][1]


def unpacked_answer(answer: Answer) -> tuple[Update, State]:
    """The update and the state as the client gave them."""
    update = replace(answer.update, weights=from_bytes(answer.weights), extras=from_bytes(answer.extras))
    return update, from_bytes(answer.state)


def work(pipe: Connection, setup: WorkerSetup) -> None:
    """Answer orders until the pipe is closed: with steps, then an answer or an error."""
    exit_with_parent()
    set_up_torch(1)
    net, clients, initial = setup.make(), _clients(setup), from_bytes(setup.initial)
    try:
        pipe.send(None)  # ready
        while True:
            order = pipe.recv()
            pipe.send(_result(pipe, net, clients[order.task.client], order, initial))
    except (EOFError, OSError):
        return  # nobody listens any more


def _clients(setup: WorkerSetup) -> dict[int, Client]:
    """The clients with their images, which all workers map from one file."""
    pairs = zip(setup.clients, setup.images.parts(), strict=True)
    return {client.index: replace(client, images=images) for client, images in pairs}


def _result(
    pipe: Connection, net: Network, client: Client, order: WorkerTask, initial: State
) -> Answer | Exception:
    try:
        return _answer(pipe, net, client, order, initial)
    except OSError:
        raise
    except (InputError, DivergedError) as error:
        return error
    except Exception:
        return RuntimeError(traceback.format_exc())  # any exception may not survive the way


def _answer(pipe: Connection, net: Network, client: Client, order: WorkerTask, initial: State) -> Answer:
    task = replace(order.task, weights=from_bytes(order.weights), extras=from_bytes(order.extras))
    state = from_bytes(order.state) if order.state else initial
    answer = client.answer(net, order.stage, task, state)
    while True:
        try:
            step: Step = next(answer)
        except StopIteration as end:
            update, new = end.value
            bare = replace(update, weights={}, extras={})
            return Answer(bare, to_bytes(update.weights), to_bytes(update.extras), to_bytes(new))
        pipe.send(step)
