"""Clients in worker processes of one thread each, as many at a time as there are workers."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

import numpy as np

from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.base import Failures, Simulation, tell
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.federation.engines.shared_images import SharedImages
from fedmcc.federation.engines.subprocesses import start_process
from fedmcc.federation.engines.worker import (
    Answer,
    WorkerSetup,
    WorkerTask,
    WorkerTasks,
    unpacked_answer,
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

BY_OPTIMISERS = "torch._dynamo"  # imported by their first step, which takes seconds in every worker
STARTS = 2  # a worker may be killed while it starts; one that cannot start will fail again


@dataclass(frozen=True)
class PoolOptions:
    """Clients train in worker processes of one thread each."""

    workers: int | None = None  # None: one per core
    memory: str = EmbeddedOptions.memory  # for what clients remember; beyond it lies in files

    def __post_init__(self) -> None:
        memory_size(self.memory)
        if self.workers is not None and self.workers < 1:
            raise InputError(f"engine.workers is {self.workers}: give 1 or more.")

    def resolve(self) -> "PoolOptions":
        """With a number of workers."""
        return replace(self, workers=self.workers or os.cpu_count() or 1)

    def build(self, net: Network, make: Callable[[], Network], clients: Sequence[Client]) -> "Pool":
        """The engine; `make` can be sent to another process and gives a network such as `net`."""
        return Pool(net, make, clients, self)


class Worker:
    """A worker process as its parent sees it."""

    def __init__(self, setup: WorkerSetup) -> None:
        made_in = getattr(setup.make, "func", setup.make).__module__  # func: of a partial function
        self.process, self.pipe = start_process(work, (setup,), (work.__module__, made_in, BY_OPTIMISERS))
        self.task: Task | None = None  # what it is at

    def give(self, task: Task, order: WorkerTask) -> bool:
        """Send an order; False when there is nobody any more."""
        try:
            self.pipe.send(order)
        except OSError:
            return False
        self.task = task
        return True

    def hear(self) -> Step | Answer | Exception | None:
        """What it says next; an EOFError when it has ended."""
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except OSError:
            raise EOFError from None

    def starts(self) -> bool:
        """Wait until it has built its network; False when it ended before."""
        try:
            return self.hear() is None
        except EOFError:
            return False

    def end(self) -> None:
        """Stop it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class Pool(Simulation):
    """Workers live from the first round to `close`; one that is killed is replaced."""

    def __init__(
        self, net: Network, make: Callable[[], Network], clients: Sequence[Client], options: PoolOptions
    ) -> None:
        super().__init__(clients, memory_size(options.memory))
        self.most = min(options.resolve().workers or 1, len(clients))
        self.make = make
        self.initial = to_bytes(add_prefix("net", detached(net.state_dict())))
        self.workers: list[Worker] = []
        self.homes: dict[int, Worker] = {}  # who had a client last, and may have features of it
        self.images: SharedImages | None = None

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Step | Update]:
        """Let the clients answer, several at a time; updates come in the order they are ready."""
        waiting, orders, failures, answered = deque(tasks), WorkerTasks(stage), Failures(), 0
        try:
            while waiting or self._busy():
                with timed("messages"):
                    self._hand_out(orders, waiting)
                for worker in self._speaking():
                    said = self._hear(worker, failures)
                    if isinstance(said, Step):
                        yield said
                    elif said is not None:
                        with timed("messages"):
                            self._hand_out(orders, waiting)  # nobody waits while an answer is read
                        answered += 1
                        yield self._unpacked(said)
        finally:
            for worker in self._busy():  # nobody waits for their answers any more
                self._dismiss(worker)
        failures.end(answered)

    def close(self) -> None:
        """End the workers, let go of the images."""
        for worker in list(self.workers):
            self._dismiss(worker)
        if self.images is not None:
            self.images.close()
            self.images = None
        super().close()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.task is not None]

    def _hand_out(self, orders: WorkerTasks, waiting: deque[Task]) -> None:
        while waiting and len(self._busy()) < self.most:
            self._staff(min(self.most, len(self._busy()) + len(waiting)))
            worker = next(worker for worker in self.workers if worker.task is None)
            place = self._choose(orders.stage, worker, waiting)
            task = waiting[place]
            if worker.give(task, orders.of(task, self.states.get(task.client))):
                del waiting[place]
                self.homes[task.client] = worker
            else:
                self._dismiss(worker)

    def _choose(self, stage: Stage, worker: Worker, waiting: deque[Task]) -> int:
        """Which task this worker takes: where features are kept, of a client that it had, or nobody had."""
        if not stage.views_per_image:
            return 0
        homes = [self.homes.get(task.client) for task in waiting]
        return min(range(len(homes)), key=lambda place: (homes[place] is not worker) + bool(homes[place]))

    def _speaking(self) -> list[Worker]:
        pipes = wait([worker.pipe for worker in self._busy()])
        return [worker for worker in self.workers if worker.pipe in pipes]

    def _hear(self, worker: Worker, failures: Failures) -> Step | Answer | None:
        """What a worker has to say to the round; None for an error or its end."""
        task = worker.task
        assert task is not None
        try:
            said = worker.hear()
        except EOFError:
            self._dismiss(worker)
            tell(task, "its worker process ended.")
            return None
        if said is None or isinstance(said, Step):
            return said
        worker.task = None
        if isinstance(said, Exception):
            failures.add(task, said)
            return None
        return said

    def _unpacked(self, answer: Answer) -> Update:
        update, state = unpacked_answer(answer)
        self.states.propose(update.client, state)
        return update

    def _staff(self, count: int) -> None:
        """See that there are so many workers."""
        for _ in range(STARTS):
            if len(self.workers) >= count:
                return
            new = [Worker(self._workshop()) for _ in range(count - len(self.workers))]
            self.workers += new
            for worker in new:
                if not worker.starts():
                    self._dismiss(worker)
        if len(self.workers) < count:
            raise InputError(
                "The worker processes of the engine 'pool' cannot start: in a script, put what it does under "
                '`if __name__ == "__main__":`, or set engine.name to embedded.'
            )

    def _workshop(self) -> WorkerSetup:
        if self.images is None:
            clients = list(self.clients.values())
            self.images = SharedImages(clients)
            pairs = zip(clients, self.images.parts(), strict=True)
            self.clients = {client.index: replace(client, images=images) for client, images in pairs}
        cache = FeatureCache(processes=self.most)
        bare = [
            replace(client, images=np.empty((0, *client.images.shape[1:]), np.uint8), cache=cache)
            for client in self.clients.values()
        ]
        return WorkerSetup(self.make, bare, self.images, self.initial)

    def _dismiss(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.end()
