"""Does the tasks of a site: trains on the site's images, and keeps the site's state on its disk."""

import logging
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.config import Config, parse_text
from fedmcc.data.base import Images, ImageSet, Source
from fedmcc.data.copies import count_different
from fedmcc.data.folder import Folder
from fedmcc.data.image_files import ImageFiles
from fedmcc.data.partition import PartitionOptions
from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.deployment.site.identity import Ledger
from fedmcc.deployment.site.masking import MaskedRound
from fedmcc.deployment.site.memory import LostStateError, RefusalError, SiteMemory
from fedmcc.deployment.site.peers import PeerBook
from fedmcc.deployment.site.policy import SitePolicy
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.policy import SECURE_MINIMUM
from fedmcc.messages import StageRound, Task, Update
from fedmcc.methods.base import Stage
from fedmcc.networks import in_files, native_size
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State, add_prefix, detached, select
from fedmcc.runs.build import build_network, fingerprint, make_client, network_factory, share_out
from fedmcc.runs.resolve import resolve, stages
from fedmcc.training.feature_cache import FeatureCache
from fedmcc.training.feature_files import feature_file

log = logging.getLogger(__name__)


class Shard(NamedTuple):
    """One part of a data set that several sites divide among themselves, to test a federation."""

    part: int  # from 0
    parts: int


@dataclass(frozen=True)
class SiteWorker:
    """The name of a site, and the folders of its state and of its images."""

    name: str
    folder: Path  # for its states, one subfolder per run
    data: Path | None = None  # a folder of images; None: the data set of the recipe
    shard: Shard | None = None  # of the data set under the recipe's partition; None: all images
    simulated: bool = False  # random numbers are those of a client in a simulation
    ledger: Ledger | None = None  # with the recipes of greetings; None: a simulation
    policy: SitePolicy = field(default_factory=SitePolicy)  # what the site's owner allows
    encoder: Path | None = None  # the files of a pretrained encoder at this site
    peers: PeerBook | None = None  # the keys of the other sites; None: a simulation

    def hello(self, greeting: Greeting) -> Hello:
        """Answer the greeting of a server, and delete the states of finished runs."""
        for run in greeting.finished:
            self._delete_state(run)
        config = parse_text(greeting.recipe)
        self._check_policy(config)
        config = self._with_encoder(config)
        if config.privacy.reproducible:
            log.warning(
                "The recipe sets privacy.reproducible: the server can repeat this site's random draws."
            )
        images = self._images(config)
        samples, channels, *sides = images.images.shape
        if reason := too_few_images(config, images.images):
            raise RefusalError(reason)
        config = _resolve(config, images)
        own = fingerprint(build_network(config, channels), config)
        return Hello(self.name, samples, channels, min(sides), version("fedmcc"), own)

    def answer(self, site_task: SiteTask, expires: float) -> Update:
        """Do one task; the new state of the site is on disk before this returns.

        If another process of the site is still at work, this waits until the task expires (in `time.time()`).
        """
        config = parse_text(site_task.config)
        self._check_policy(config)
        _check_names(config, site_task)
        self._check_recipe(site_task)
        config = self._with_encoder(config)
        images = self._images(config)
        make, config = network_factory(_resolve(config, images), images)
        net = make()
        if fingerprint(net, config) != site_task.fingerprint:
            raise RefusalError(
                "The site's network differs from the server's: install the same fedmcc everywhere."
            )
        client = make_client(config, site_task.task.client, images.images, FeatureCache())
        memory = SiteMemory(self.folder / site_task.run)
        with memory.locked(expires):
            features = feature_file(net.online.encoder, images.images, config.views)
            client = replace(client, features=features)
            if not (self.simulated or config.privacy.reproducible):
                client = replace(client, seed=memory.secret_seed())
            stage = _stage(config, site_task.task)
            hide = self.masked_round(site_task.run).masking(config, stage, site_task, len(images.images))
            return hide(_work(client, net, stage, site_task, memory))

    def masked_round(self, run: str) -> MaskedRound:
        """The part of this site in secure aggregation, in a run."""
        if not run.isalnum():
            raise RefusalError("The message has an invalid run.")
        recipe = self.ledger.recipe(run) if self.ledger else None
        fewest = parse_text(recipe).federation.fewest if recipe else SECURE_MINIMUM
        minimum = 1 if self.simulated else max(fewest, self.policy.min_participants or 1)
        return MaskedRound(SiteMemory(self.folder / run), self.name, minimum, self.peers)

    def _check_policy(self, config: Config) -> None:
        """Refuse a recipe outside the site's policy, before any image is read."""
        if reason := self.policy.objection(config):
            raise RefusalError(reason)

    def _with_encoder(self, config: Config) -> Config:
        """The configuration with the site's own files of a pretrained encoder, which must be the server's."""
        if not in_files(config.encoder) or self.simulated:
            return config
        options: Any = config.encoder
        needed = f"the encoder with the SHA-256 {options.sha256}"
        place = self.encoder or getattr(options, "fetched", None)  # a site downloads nothing for a server
        try:
            own = replace(options, path=place).resolve()
        except InputError as error:
            log.error("%s", error)  # it names a folder of the site, and is not sent
            remedy = "install its package, or start the site with --encoder and the place of its files"
            raise RefusalError(f"The site does not have {needed}: {remedy}.") from None
        return replace(config, encoder=own)

    def _check_recipe(self, site_task: SiteTask) -> None:
        """Refuse a task whose options differ from those with which the server greeted this site."""
        if self.ledger and (changed := self.ledger.differences(site_task.run, site_task.config)):
            raise RefusalError(f"The task differs from the recipe of the run in {', '.join(changed[:5])}.")

    def _delete_state(self, run: str) -> None:
        """Delete the states of a run, unless a process is at work on it."""
        if not run.isalnum() or not (self.folder / run).is_dir():
            return
        memory = SiteMemory(self.folder / run)
        with suppress(RefusalError), memory.locked(None):
            memory.delete()
            log.info("Deleted the state of a finished run.")

    def _images(self, config: Config) -> ImageSet:
        try:
            images = self._source(config).load()
        except InputError:
            if self.data is None:
                raise
            raise InputError(  # the message of the error may name image files
                f"The images in {self.data} cannot be used: `fedmcc site check --data {self.data}` says why."
            ) from None
        if self.shard is None:
            return images
        partition = replace(config.partition, clients=self.shard.parts)
        return images.take(share_out(replace(config, partition=partition), images)[self.shard.part])

    def _source(self, config: Config) -> Source:
        if self.data is None:
            return config.data
        size = native_size(config.encoder) if in_files(config.encoder) else None
        return site_files(config.data, self.data, size)


def site_files(source: Source, root: Path, size: int | None = None) -> ImageFiles:
    """The image files of a site, decoded with the options of the recipe if its [data] reads files.

    Otherwise they are decoded in `size`, that of a frozen encoder, or in the usual size.
    """
    if isinstance(source, ImageFiles):
        return replace(source, root=root, thinned=1.0)  # thinning is for simulations
    files = Folder(root=root, labels=False)
    return replace(files, size=size or files.size)


def too_few_images(config: Config, images: Images) -> str:
    """Why a site with these images refuses a recipe; empty if it does not."""
    fewest = max((getattr(stage, "smallest", 1) for stage in stages(config)), default=1)
    if fewest <= 1 or (len(images) >= fewest and count_different(images, fewest) >= fewest):
        return ""
    return (
        f"The site has fewer different images than a centroid must represent ({fewest}): add images to the "
        "site, or lower smallest in the recipe."
    )


def _resolve(config: Config, images: ImageSet) -> Config:
    """Complete the configuration for this machine; a site's images are not partitioned further."""
    return resolve(replace(config, partition=PartitionOptions(clients=config.partition.clients)), images)


def _check_names(config: Config, site_task: SiteTask) -> None:
    """Refuse names that do not belong to the run: they become file names."""
    rounds = {stage.name: stage.rounds for stage in stages(config)}
    named = {site_task.task.stage, *([site_task.base.stage] if site_task.base else [])}
    if not site_task.run.isalnum() or named - rounds.keys():
        raise RefusalError("The task has an invalid run or stage.")
    if not 1 <= site_task.task.round <= rounds[site_task.task.stage]:
        raise RefusalError("The task has a round that its stage does not have.")


def _stage(config: Config, task: Task) -> Stage:
    return next(stage for stage in stages(config) if stage.name == task.stage)


def _work(client: Client, net: Network, stage: Stage, site_task: SiteTask, memory: SiteMemory) -> Update:
    """Train from the state after the last averaged round, and save the new state."""
    task, base = site_task.task, site_task.base
    if base is not None:
        state = memory.load(base)
    else:
        state = add_prefix("net", detached(net.state_dict()))
        _check_complete(net, stage, task)
    log.info("%s, round %d: training on %d images.", task.stage, task.round, len(client.images))
    update, state = _result(client.answer(net, stage, task, state))
    memory.save(StageRound(task.stage, task.round), state, base)
    return update


def _check_complete(net: Network, stage: Stage, task: Task) -> None:
    """Raise LostStateError if a site without a state is not sent the whole network of the stage."""
    needed = select(net.state_dict(), (*stage.frozen, *stage.shared))
    if needed.keys() - task.weights.keys():
        raise LostStateError("The site has no state of this stage.")


def _result(answer: Generator[Any, None, tuple[Update, State]]) -> tuple[Update, State]:
    """Run a generator to its end and return its result; the steps are not shown."""
    while True:
        try:
            next(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
