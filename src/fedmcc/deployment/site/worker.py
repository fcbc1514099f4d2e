"""A site of a real federation: its own images, what it remembers on its own disk, and how it answers."""

import logging
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.config import Config, parse_text
from fedmcc.data.base import ImageSet, Source
from fedmcc.data.folder import Folder
from fedmcc.data.image_files import ImageFiles
from fedmcc.data.partition import PartitionOptions
from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.messages import StageRound, Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State, add_prefix, detached, select
from fedmcc.runs.build import build_network, fingerprint, make_client, network_factory, share_out
from fedmcc.runs.resolve import resolve, stages
from fedmcc.storage.atomic_files import make_folder, try_lock
from fedmcc.storage.safetensor_files import load_state, save_state
from fedmcc.training.feature_cache import FeatureCache

log = logging.getLogger(__name__)

GLANCE = 0.2  # seconds between two looks whether earlier work has ended


class RefusalError(Exception):
    """Why a site does not do what it was asked: a sentence that may leave the site."""


class ForgottenError(RefusalError):
    """What the site remembered of the run is not there."""


class Shard(NamedTuple):
    """One part of a data set that several sites share out, to try a federation on one machine."""

    part: int  # from 0
    parts: int


@dataclass(frozen=True)
class SiteWorker:
    """Who a site is and where its things lie."""

    name: str
    folder: Path  # for what it remembers
    data: Path | None = None  # a folder of images; None: the data set that the recipe names
    shard: Shard | None = None  # of the data set under the recipe's own partition; None: all of it

    def hello(self, greeting: Greeting) -> Hello:
        """Introduce itself to a server, and forget the runs that are finished."""
        for run in greeting.finished:
            self._forget(run)
        config = parse_text(greeting.recipe)
        images = self._images(config)
        samples, channels, *sides = images.images.shape
        config = _resolve(config, images)
        mark = fingerprint(build_network(config, channels), config)
        return Hello(self.name, samples, channels, min(sides), version("fedmcc"), mark)

    def answer(self, order: SiteTask, until: float) -> Update:
        """Do one task; what the site then remembers is on disk before this returns.

        While earlier work of the site goes on, it waits, at most until this moment of the clock.
        """
        config = parse_text(order.config)
        _refuse_strange_names(config, order)
        images = self._images(config)
        make, config = network_factory(_resolve(config, images), images)
        net = make()
        if fingerprint(net, config) != order.fingerprint:
            raise RefusalError("Its network differs from the server's: use the same fedmcc everywhere.")
        client = make_client(config, order.task.client, images.images, FeatureCache())
        notes = SiteMemory(self.folder / order.run)
        with notes.locked(until):
            return _work(client, net, _stage(config, order.task), order, notes)

    def _forget(self, run: str) -> None:
        """Delete what the site remembers of a run; not while a process is at work on it."""
        if not run.isalnum() or not (self.folder / run).is_dir():
            return
        notes = SiteMemory(self.folder / run)
        with suppress(RefusalError), notes.locked(None):
            notes.drop()
            log.info("A finished run was forgotten.")

    def _images(self, config: Config) -> ImageSet:
        images = self._source(config).load()
        if self.shard is None:
            return images
        partition = replace(config.partition, clients=self.shard.parts)
        return images.take(share_out(replace(config, partition=partition), images)[self.shard.part])

    def _source(self, config: Config) -> Source:
        if self.data is None:
            return config.data
        return files_of(config.data, self.data)


def files_of(source: Source, root: Path) -> ImageFiles:
    """A site's own files, decoded as the recipe says if it says so."""
    return replace(source, root=root) if isinstance(source, ImageFiles) else Folder(root=root, labels=False)


class SiteMemory:
    """What a site remembers of one run: after the last round that counted, and after the one since.

    The second counts only if a later order says so; work that was never averaged is thus undone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self, until: float | None) -> Iterator[None]:
        """Be the only process at work for this site; one that was killed lets go.

        It waits until the task lapses (None: not at all), and one that has lapsed is not begun: it would
        undo what a later one remembers.
        """
        make_folder(self.folder, "what the site remembers")
        with (self.folder / "lock").open("w") as file:
            while not try_lock(file.fileno()):
                if until is None or time.time() > until:
                    raise RefusalError("It is still busy with earlier work.")
                time.sleep(GLANCE)
            if until is not None and time.time() > until:
                raise RefusalError("Its task came too late to be begun.")
            yield

    def recall(self, moment: StageRound) -> State:
        """What it remembered after this round."""
        path = self._file(moment)
        if not path.exists():
            raise ForgottenError(f"It has lost what it remembered of {moment.stage}, round {moment.round}.")
        try:
            return load_state(path)
        except InputError:
            raise ForgottenError("What it remembered is damaged.") from None

    def keep(self, moment: StageRound, state: State, base: StageRound | None) -> None:
        """Put down what it remembers now, beside what it began this round with, and drop all else."""
        new = self._file(moment)
        save_state(new, state)
        kept = {new, self._file(base) if base else new}
        for path in self.folder.iterdir():  # also what a crash left half written
            if path not in kept and path.name != "lock":
                path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Keep nothing at all."""
        shutil.rmtree(self.folder)

    def _file(self, moment: StageRound) -> Path:
        return self.folder / f"{moment.stage}-{moment.round:06}.safetensors"


def _resolve(config: Config, images: ImageSet) -> Config:
    """What depends on the machine filled in; how a simulation shares images out is of no more concern."""
    return resolve(replace(config, partition=PartitionOptions(clients=config.partition.clients)), images)


def _work(client: Client, net: Network, stage: Stage, order: SiteTask, notes: SiteMemory) -> Update:
    task, base = order.task, order.base
    if base is not None:
        state = notes.recall(base)
    else:
        state = add_prefix("net", detached(net.state_dict()))
        _refuse_half_a_network(net, stage, task)
    log.info("%s, round %d: training on %d images.", task.stage, task.round, len(client.images))
    update, state = _outcome(client.answer(net, stage, task, state))
    notes.keep(StageRound(task.stage, task.round), state, base)
    return update


def _refuse_half_a_network(net: Network, stage: Stage, task: Task) -> None:
    """A site that remembers nothing needs all that the stage takes for granted."""
    needed = select(net.state_dict(), (*stage.frozen, *stage.shared))
    if needed.keys() - task.weights.keys():
        raise ForgottenError("It remembers nothing of this stage.")


def _refuse_strange_names(config: Config, order: SiteTask) -> None:
    """These become names of files."""
    asked = {order.task.stage, *([order.base.stage] if order.base else [])}
    if not order.run.isalnum() or asked - {stage.name for stage in stages(config)}:
        raise RefusalError("The order names a run or a stage that there cannot be.")


def _stage(config: Config, task: Task) -> Stage:
    return next(stage for stage in stages(config) if stage.name == task.stage)


def _outcome(answer: Generator[Any, None, tuple[Update, State]]) -> tuple[Update, State]:
    """What a client ends with; nobody here watches its steps."""
    while True:
        try:
            next(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
