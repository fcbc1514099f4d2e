"""Clients in worker processes of one thread each, one client per worker at a time."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

import numpy as np

from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.base import ClientErrors, Simulation, log_dropout
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.federation.engines.shared_images import SharedImages
from fedmcc.federation.engines.subprocesses import start_process
from fedmcc.federation.engines.worker import (
    WorkerSetup,
    WorkerTask,
    WorkerTasks,
    WorkerUpdate,
    unpack_update,
    work,
)
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import add_prefix, detached
from fedmcc.storage.safetensor_files import to_bytes
from fedmcc.training.feature_cache import FeatureCache
from fedmcc.training.loop import Step
from fedmcc.training.memory import memory_size
from fedmcc.training.timing import timed

PRELOADED = "torch._dynamo"  # optimisers import it in their first step, which would take seconds per worker
MAX_STARTS = 2  # attempts; a worker may be killed while it starts


@dataclass(frozen=True)
class PoolOptions:
    """Clients train in worker processes of one thread each."""

    workers: int | None = None  # worker processes; None: one per core
    memory: str = EmbeddedOptions.memory  # for client states; the rest is in files

    def __post_init__(self) -> None:
        memory_size(self.memory)
        if self.workers is not None and self.workers < 1:
            raise InputError(f"engine.workers is {self.workers}: give 1 or more.")

    def resolve(self) -> "PoolOptions":
        """The options with the number of workers filled in."""
        return replace(self, workers=self.workers or os.cpu_count() or 1)

    def build(self, net: Network, make: Callable[[], Network], clients: Sequence[Client]) -> "Pool":
        """The engine; `make` can be pickled and builds a network like `net`."""
        return Pool(net, make, clients, self)


class Worker:
    """The parent's handle of a worker process."""

    def __init__(self, setup: WorkerSetup) -> None:
        made_in = getattr(setup.make, "func", setup.make).__module__  # a partial function has `func`
        self.process, self.pipe = start_process(work, (setup,), (work.__module__, made_in, PRELOADED))
        self.task: Task | None = None  # the task that it is running

    def send(self, task: Task, request: WorkerTask) -> bool:
        """Send a task; returns False if the process has exited."""
        try:
            self.pipe.send(request)
        except OSError:
            return False
        self.task = task
        return True

    def receive(self) -> Step | WorkerUpdate | Exception | None:
        """The next message, None when the worker is ready; raises EOFError if the process has exited."""
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except OSError:
            raise EOFError from None

    def wait_until_ready(self) -> bool:
        """Wait until the worker has built its network; returns False if the process has exited."""
        try:
            return self.receive() is None
        except EOFError:
            return False

    def kill(self) -> None:
        """Stop the process at once."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class Pool(Simulation):
    """Runs clients in worker processes, which exist until `close`; a worker that exits is replaced."""

    def __init__(
        self, net: Network, make: Callable[[], Network], clients: Sequence[Client], options: PoolOptions
    ) -> None:
        super().__init__(clients, memory_size(options.memory))
        self.max_workers = min(options.resolve().workers or 1, len(clients))
        self.make = make
        self.initial = to_bytes(add_prefix("net", detached(net.state_dict())))
        self.workers: list[Worker] = []
        self.last_worker: dict[int, Worker] = {}  # by client; it may have cached the client's features
        self.images: SharedImages | None = None

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Run several tasks at a time; updates are yielded as they arrive."""
        waiting, requests, errors, answered = deque(tasks), WorkerTasks(stage), ClientErrors(), 0
        try:
            while waiting or self._busy():
                with timed("messages"):
                    self._assign(requests, waiting)
                for worker in self._with_messages():
                    message = self._receive(worker, errors)
                    if isinstance(message, Step):
                        yield message
                    elif message is not None:
                        with timed("messages"):
                            self._assign(requests, waiting)  # before unpacking, so that no worker is idle
                        answered += 1
                        yield self._unpack(message)
        finally:
            for worker in self._busy():  # the round was abandoned
                self._remove(worker)
        errors.report(answered)

    def close(self) -> None:
        """Stop the workers, close the shared images and delete the client states."""
        for worker in list(self.workers):
            self._remove(worker)
        if self.images is not None:
            self.images.close()
            self.images = None
        super().close()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.task is not None]

    def _assign(self, requests: WorkerTasks, waiting: deque[Task]) -> None:
        """Send waiting tasks to idle workers, and start workers if there are too few."""
        while waiting and len(self._busy()) < self.max_workers:
            self._start_workers(min(self.max_workers, len(self._busy()) + len(waiting)))
            worker = next(worker for worker in self.workers if worker.task is None)
            position = self._choose(requests.stage, worker, waiting)
            task = waiting[position]
            if worker.send(task, requests.of(task, self.states.get(task.client))):
                del waiting[position]
                self.last_worker[task.client] = worker
            else:
                self._remove(worker)

    def _choose(self, stage: Stage, worker: Worker, waiting: deque[Task]) -> int:
        """Index of the task for this worker; with cached features, preferably of a client it ran last."""
        if not stage.views_per_image:
            return 0
        last = [self.last_worker.get(task.client) for task in waiting]
        return min(range(len(last)), key=lambda index: (last[index] is not worker) + bool(last[index]))

    def _with_messages(self) -> list[Worker]:
        """Wait for messages; returns the workers that sent one."""
        pipes = wait([worker.pipe for worker in self._busy()])
        return [worker for worker in self.workers if worker.pipe in pipes]

    def _receive(self, worker: Worker, errors: ClientErrors) -> Step | WorkerUpdate | None:
        """The next step or update of a worker; None after an error or if the process has exited."""
        task = worker.task
        assert task is not None
        try:
            message = worker.receive()
        except EOFError:
            self._remove(worker)
            log_dropout(task, "its worker process exited.")
            return None
        if message is None or isinstance(message, Step):
            return message
        worker.task = None
        if isinstance(message, Exception):
            errors.add(task, message)
            return None
        return message

    def _unpack(self, packed: WorkerUpdate) -> Update:
        update, state = unpack_update(packed)
        self.states.set_pending(update.client, state)
        return update

    def _start_workers(self, count: int) -> None:
        """Start workers until there are `count`."""
        for _ in range(MAX_STARTS):
            if len(self.workers) >= count:
                return
            new = [Worker(self._worker_setup()) for _ in range(count - len(self.workers))]
            self.workers += new
            for worker in new:
                if not worker.wait_until_ready():
                    self._remove(worker)
        if len(self.workers) < count:
            raise InputError(
                "The worker processes of the engine 'pool' cannot start: put the code of your script under "
                '`if __name__ == "__main__":`, or set engine.name to embedded.'
            )

    def _worker_setup(self) -> WorkerSetup:
        if self.images is None:
            clients = list(self.clients.values())
            self.images = SharedImages(clients)
            pairs = zip(clients, self.images.parts(), strict=True)
            self.clients = {client.index: replace(client, images=images) for client, images in pairs}
        cache = FeatureCache(processes=self.max_workers)
        bare = [
            replace(client, images=np.empty((0, *client.images.shape[1:]), np.uint8), cache=cache)
            for client in self.clients.values()
        ]
        return WorkerSetup(self.make, bare, self.images, self.initial)

    def _remove(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.kill()
