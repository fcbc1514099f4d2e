"""A worker process of the pool, which runs one client after the other on one network."""

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
    """Everything that a worker needs to run any client."""

    make: Callable[[], Network]
    clients: Sequence[Client]  # without their images
    images: SharedImages
    initial: bytes  # state of a client before its first task


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """A task for a worker, with the client's state; tensors are serialised."""

    stage: Stage
    task: Task
    weights: bytes
    extras: bytes
    state: bytes  # empty before the client's first task


@dataclass(frozen=True, eq=False)
class WorkerUpdate:
    """An update from a worker, with the client's new state; tensors are serialised."""

    update: Update
    weights: bytes
    extras: bytes
    state: bytes


class WorkerTasks:
    """Converts the tasks of a round for workers; tensors shared by several tasks are serialised once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._serialised: dict[int, tuple[State, bytes]] = {}  # holds the states too, so that ids stay unique

    def of(self, task: Task, state: State | None) -> WorkerTask:
        """The task for a worker, with the state of its client."""
        state_bytes = b"" if state is None else to_bytes(state)
        bare = replace(task, weights={}, extras={})
        return WorkerTask(self.stage, bare, self._bytes(task.weights), self._bytes(task.extras), state_bytes)

    def _bytes(self, state: State) -> bytes:
        if id(state) not in self._serialised:
            self._serialised[id(state)] = state, to_bytes(state)
        return self._serialised[id(state)][1]


def unpack_update(packed: WorkerUpdate) -> tuple[Update, State]:
    """The update and the new state of a client."""
    update = replace(packed.update, weights=from_bytes(packed.weights), extras=from_bytes(packed.extras))
    return update, from_bytes(packed.state)


def work(pipe: Connection, setup: WorkerSetup) -> None:
    """Run tasks until the pipe is closed; send the steps of each, then its update or an error."""
    exit_with_parent()
    set_up_torch(1)
    net, clients, initial = setup.make(), _clients(setup), from_bytes(setup.initial)
    try:
        pipe.send(None)  # ready
        while True:
            request = pipe.recv()
            pipe.send(_result(pipe, net, clients[request.task.client], request, initial))
    except (EOFError, OSError):
        return  # the parent closed the pipe


def _clients(setup: WorkerSetup) -> dict[int, Client]:
    """The clients with their images, mapped from the shared file."""
    pairs = zip(setup.clients, setup.images.parts(), strict=True)
    return {client.index: replace(client, images=images) for client, images in pairs}


def _result(
    pipe: Connection, net: Network, client: Client, request: WorkerTask, initial: State
) -> WorkerUpdate | Exception:
    try:
        return _run(pipe, net, client, request, initial)
    except OSError:
        raise
    except Exception as error:
        return sendable(error)


def sendable(error: Exception) -> Exception:
    """An error that another process can receive: not every exception can be sent as it is."""
    if isinstance(error, InputError | DivergedError):
        return error
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


def _run(pipe: Connection, net: Network, client: Client, request: WorkerTask, initial: State) -> WorkerUpdate:
    task = replace(request.task, weights=from_bytes(request.weights), extras=from_bytes(request.extras))
    state = from_bytes(request.state) if request.state else initial
    steps = client.answer(net, request.stage, task, state)
    while True:
        try:
            step: Step = next(steps)
        except StopIteration as end:
            update, new = end.value
            bare = replace(update, weights={}, extras={})
            return WorkerUpdate(bare, to_bytes(update.weights), to_bytes(update.extras), to_bytes(new))
        pipe.send(step)
