"""Builds from a configuration what a run needs, and refuses in a sentence what cannot work."""

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedmcc.acceleration import set_up_torch, settled_precision
from fedmcc.checkpoints import load_network, load_shapes
from fedmcc.chunked import GHOSTS, has_ghosts
from fedmcc.client import Client
from fedmcc.config import Config, load
from fedmcc.construction import (
    build_network,
    find_device,
    owner,
    stages,
    without_first_weights,
    workshop,
)
from fedmcc.data.base import ImageSet
from fedmcc.engines import Crew
from fedmcc.errors import InputError
from fedmcc.feature_cache import FeatureCache
from fedmcc.federation import Policy
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.partition import Rows, settled, share
from fedmcc.privacy import Guard
from fedmcc.randomness import derive
from fedmcc.runs import Run

if TYPE_CHECKING:
    from fedmcc.evaluation.scoring import Scorer

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a run needs, built and checked."""

    config: Config  # complete: nothing in it is left to be found out
    images: ImageSet  # without a row where others hold them all
    shards: list[Rows]  # who holds which
    scorer: "Scorer | None"  # None: there is nothing to score on
    net: Network
    engine: Crew

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the method, and of the clustering that follows it."""
        return stages(self.config)

    def policy(self, secret: bytes) -> Policy:
        """How the server runs its rounds; noise that hides clients is drawn from the secret."""
        return Policy(self.config.federation, self.config.general.seed, Guard(self.config.privacy, secret))

    @property
    def clients(self) -> list[int]:
        """Who may take part."""
        only = self.config.federation.only
        return self.engine.members if only is None else [only]


@dataclass(frozen=True, eq=False)
class Trained:
    """The network of a run, and what scores it; nobody trains, so there are no clients."""

    config: Config
    net: Network
    scorer: "Scorer"


def reopen(run: Run, checkpoint: Path | None = None) -> Trained:
    """The final network of a run, or one of its checkpoints, and the images that the run is scored on."""
    # What was trained on one device can be scored on any.
    config = without_first_weights(load(run.config_file, ["device=auto"]))
    path = checkpoint or run.model_file
    load_shapes(path)  # says what is missing or damaged before images are loaded
    try:
        images = scored_images(config)
    except InputError as error:
        raise InputError(f"The images of {run.path} cannot be loaded: {error}") from None
    config = resolve(config, images)
    set_up_torch(config.general.thread_count)
    net = build_network(config, images.images.shape[1])
    load_network(net, path)
    return Trained(config, net, _scorer(config, images))


def prepare(config: Config) -> Experiment:
    """Load the images that the configuration names and assemble an experiment on them."""
    return assemble(config, config.data.load())


def assemble(config: Config, images: ImageSet) -> Experiment:
    """Fill in what depends on the images, build the network and the clients."""
    config = resolve(config, images)
    check(config)
    _check_images(config, images)
    make, config = workshop(config, images)
    net = make()
    if config.training.chunks(config.training.batch_size) and _has_ghosts(config, net):
        log.warning(GHOSTS)
    shards = share_out(config, images)
    engine = config.engine.build(net, make, _clients(config, images, shards))
    return Experiment(config, images, shards, scorer_of(config, images), net, engine)


def _has_ghosts(config: Config, net: Network) -> bool:
    return any(has_ghosts(net, stage.frozen) for stage in stages(config) if stage.trained)


def resolve(config: Config, images: ImageSet) -> Config:
    """The configuration with everything filled in that depends on the images or the machine."""
    general = replace(
        config.general,
        clusters=config.general.clusters or count_classes(images),
        device=str(find_device(config.general.device)),
        threads=config.general.thread_count,
    )
    training = config.training
    precision = settled_precision(training.precision, torch.device(general.device))
    keep = training.keep_optimizer
    partition = settled(config.partition, images)
    alone = partition.clients == 1 or config.federation.only is not None
    return replace(
        config,
        general=general,
        engine=config.engine.settled(),
        views=replace(config.views, size=config.views.size or min(images.images.shape[2:])),
        partition=partition,
        training=replace(training, keep_optimizer=alone if keep is None else keep, precision=precision),
    )


def share_out(config: Config, images: ImageSet) -> list[Rows]:
    """The rows of each client."""
    return share(images, config.partition, derive(config.general.seed, "partition"))


def count_classes(images: ImageSet) -> int:
    """How many classes the images have."""
    labels = images.labels
    found = 0 if labels is None else len({int(label) for label in labels} - {-1})
    if found < 2:
        raise InputError("The images have no labels to count: say how many clusters with --set clusters=10.")
    return found


def _clients(config: Config, images: ImageSet, shards: list[Rows]) -> list[Client]:
    """The owners of the images."""
    only, cache = config.federation.only, FeatureCache()
    if only is not None and not 0 <= only < len(shards):
        raise InputError(f"federation.only is {only}: give a client from 0 to {len(shards) - 1}.")
    if len(shards) == 1:  # as it is, perhaps mapped from disk
        return [owner(config, 0, images.images, cache)]
    return [owner(config, index, images.images[rows], cache) for index, rows in enumerate(shards)]


def check(config: Config) -> None:
    """Refuse stages and federations that cannot work, whatever the images."""
    for stage in stages(config):
        if stage.rounds < 1 or (stage.trained and stage.epochs < 1):
            section = "clustering" if stage in config.clustering.stages() else "method"
            raise InputError(
                f"The stage {stage.name} has {stage.rounds} rounds of {stage.epochs} epochs: "
                f"set {section}.rounds and {section}.epochs to 1 or more."
            )
    config.federation.size(config.partition.clients)  # says what is wrong
    config.privacy.refuse_unless_private(stages(config))


def _check_images(config: Config, images: ImageSet) -> None:
    clusters, batch_size = config.general.clusters or 0, config.training.batch_size
    if clusters > len(images):
        raise InputError(f"{clusters} clusters of {len(images)} images: lower clusters or give more images.")
    if batch_size > len(images):
        raise InputError(
            f"training.batch_size is {batch_size} and there are {len(images)} images: set it to at most that."
        )


def scored_images(config: Config) -> ImageSet:
    """The images of `evaluation.split`, or those trained on (D15)."""
    split = config.evaluation.split
    if split is None:
        return config.data.load()
    if "split" not in {field.name for field in fields(config.data)}:
        raise InputError(f"evaluation.split is '{split}', but this data set has no splits: leave it out.")
    return replace(config.data, split=split).load()  # type: ignore[call-arg]


def scorer_of(config: Config, images: ImageSet) -> "Scorer":
    """What scores networks on these images, or on the split of theirs that the configuration names."""
    return _scorer(config, images if config.evaluation.split is None else scored_images(config))


def _scorer(config: Config, scored: ImageSet) -> "Scorer":
    from fedmcc.evaluation.scoring import Scorer  # sites score nothing: they are spared its libraries

    general = config.general
    if (general.clusters or 0) > len(scored):
        raise InputError(f"{general.clusters} clusters, but only {len(scored)} images to score: give more.")
    return Scorer(scored, config.views, general.clusters or 0, general.seed, config.evaluation)
