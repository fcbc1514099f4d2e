"""Builds the objects of a run from its configuration: network, clients, engine and scorer."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmcc.config import Config, load
from fedmcc.data.base import Images, ImageSet
from fedmcc.data.partition import Rows, partition_images
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines import Engine
from fedmcc.federation.policy import Policy
from fedmcc.federation.privacy import PrivateAggregator
from fedmcc.methods.base import Stage
from fedmcc.networks import is_frozen
from fedmcc.networks.inference import device_of
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Network
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.randomness import derive, generator
from fedmcc.runs.checkpoints import load_network, load_shapes
from fedmcc.runs.cluster_choice import apply_cut
from fedmcc.runs.clusters import load_edits
from fedmcc.runs.directory import Run
from fedmcc.runs.resolve import (
    check,
    check_images,
    resolve,
    stages,
    with_possible_batch,
    with_possible_clusters,
    with_statistics,
    without_first_weights,
)
from fedmcc.runs.scoring import make_scorer, owners, scored_images, scorer_of
from fedmcc.training.batches import BatchSource, LazyBatch
from fedmcc.training.chunk_size import largest_chunk
from fedmcc.training.chunked import CHUNKED_BATCHNORM, normalises_by_chunk
from fedmcc.training.feature_cache import FeatureCache, bytes_of_view
from fedmcc.training.feature_files import FeatureFile, feature_file
from fedmcc.training.memory import memory_size
from fedmcc.training.speed_probe import warn_of_slow_options
from fedmcc.training.torch_setup import compile_encoders, find_device, set_up_torch

if TYPE_CHECKING:
    from fedmcc.evaluation.scorer import Scorer

log = logging.getLogger(__name__)

CACHED_SHARE = 0.25  # of training.memory_limit, at most, for cached features


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a run needs, built and checked."""

    config: Config  # complete
    images: ImageSet  # empty if sites elsewhere hold them
    shards: list[Rows]  # the rows of each client
    scorer: "Scorer | None"  # None: there are no images to score on
    net: Network
    engine: Engine

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the method, then those of the clustering."""
        return stages(self.config)

    def policy(self, secret: bytes) -> Policy:
        """How the server runs its rounds; noise for privacy is derived from the secret."""
        return Policy(
            self.config.federation, self.config.general.seed, PrivateAggregator(self.config.privacy, secret)
        )

    @property
    def clients(self) -> list[int]:
        """The clients that may take part."""
        only = self.config.federation.only
        return self.engine.members if only is None else [only]


@dataclass(frozen=True, eq=False)
class Trained:
    """The network of a run and its scorer, without clients: nothing is trained."""

    config: Config
    net: Network
    scorer: "Scorer"


def reopen(run: Run, checkpoint: Path | None = None) -> Trained:
    """Load the final network of a run, or one of its checkpoints, and the images that it is scored on.

    The network has the number of clusters that was set with `fedmcc report --clusters`, if any was.
    """
    # A network trained on one device can be scored on any other.
    config = without_first_weights(load(run.config_file, ["device=auto"]))
    path = checkpoint or run.model_file
    load_shapes(path)  # a missing or damaged file is refused before images are loaded
    try:
        images = scored_images(config)
    except InputError as error:
        raise InputError(f"The images of {run.path} cannot be loaded: {error}") from None
    config = resolve(config, images)
    set_up_torch(config.general.thread_count)
    net = build_network(config, images.images.shape[1])
    load_network(net, path)
    if checkpoint is None:
        apply_cut(net, run)
    if isinstance(head := net.online.cluster_projector, Prototypes):  # it may have chosen their number
        config = replace(config, general=replace(config.general, clusters=head.in_use))
    edits = load_edits(run)
    scorer = replace(make_scorer(config, images), edit=edits.apply, merged=len(edits.merged))
    if config.evaluation.split is None and not run.sites_file.exists():  # sites hold their own images
        scorer = replace(scorer, owners=owners(share_out(config, images), len(images)))
    return Trained(config, net, scorer)


def prepare(config: Config) -> Experiment:
    """Load the images that the configuration names and build the experiment."""
    return assemble(config, config.data.load())


def assemble(config: Config, images: ImageSet) -> Experiment:
    """Complete and check the configuration, then build network, clients, engine and scorer."""
    config = with_possible_clusters(with_statistics(resolve(config, images), images), images)
    check(config)
    check_images(config, images)
    config = with_possible_batch(config, images)
    make, config = network_factory(config, images)
    net = make()
    config.privacy.require_private_stages(net, stages(config))
    config.federation.require_sums(net, stages(config))
    if config.views.size is not None:
        warn_of_slow_options(net, (images.images.shape[1], *2 * (config.views.size,)), config.training)
    if config.training.chunks(config.training.batch_size) and _normalises_by_chunk(config, net):
        log.warning(CHUNKED_BATCHNORM)
    shards = share_out(config, images)
    features = feature_file(net.online.encoder, images.images, config.views)
    engine: Engine = config.engine.build(net, make, _clients(config, images, shards, features))
    if config.federation.secure_aggregation:
        from fedmcc.federation.engines.secure import SecureEngine

        engine = SecureEngine(engine, config.privacy.clip)
    return Experiment(config, images, shards, scorer_of(config, images, shards), net, engine)


def _normalises_by_chunk(config: Config, net: Network) -> bool:
    return any(normalises_by_chunk(net, stage.frozen) for stage in stages(config) if stage.trained)


def share_out(config: Config, images: ImageSet) -> list[Rows]:
    """The rows of each client."""
    return partition_images(images, config.partition, derive(config.general.seed, "partition"))


def _clients(
    config: Config, images: ImageSet, shards: list[Rows], features: FeatureFile | None
) -> list[Client]:
    only, cache = config.federation.only, FeatureCache()
    if only is not None and not 0 <= only < len(shards):
        raise InputError(f"federation.only is {only}: give a client from 0 to {len(shards) - 1}.")
    if len(shards) == 1 and len(shards[0]) == len(images):  # no copy: the array may be mapped from disk
        every = np.arange(len(images.images))
        client = make_client(config, 0, images.images, cache, _labelled(images, every))
        return [replace(client, features=features)]
    clients = [
        make_client(config, index, images.images[rows], cache, _labelled(images, rows))
        for index, rows in enumerate(shards)
    ]
    if features is None:
        return clients
    return [
        replace(client, features=features.take(rows)) for client, rows in zip(clients, shards, strict=True)
    ]


def _labelled(images: ImageSet, rows: Rows) -> Rows | None:
    """Which of these images have a label, as numbers among them; None if all of them or none has one."""
    if images.labels is None:
        return None
    labelled = np.flatnonzero(images.labels[rows] >= 0)
    return labelled if 0 < len(labelled) < len(rows) else None


def make_client(
    config: Config, index: int, images: Images, cache: FeatureCache, labelled: Rows | None = None
) -> Client:
    """A client with its images, in a simulation or at a site; it never receives labels.

    In a simulation it may know which of its images have a label, for stages that leave out the others.
    """
    return Client(
        index,
        images,
        config.views,
        config.training,
        config.general.seed,
        clip=config.privacy.clip,
        cache=cache,
        labelled=labelled,
    )


def network_factory(config: Config, images: ImageSet) -> tuple[Callable[[], Network], Config]:
    """A function that builds the network in any process, and the configuration with a chunk that fits."""
    set_up_torch(config.general.thread_count)
    make = partial(build_network, config, channels=images.images.shape[1])
    return make, _with_chunk(config, make, images)


def _with_chunk(config: Config, make: Callable[[], Network], images: ImageSet) -> Config:
    """Measure the largest chunk that fits into memory if `training.chunk` is `auto`."""
    training = config.training
    if training.chunk != "auto" or training.memory_limit is None:
        return config
    net = make()  # measuring changes it
    limit = memory_size(training.memory_limit, "training.memory_limit")
    cache = min(training.cache_bytes, int(CACHED_SHARE * limit))
    free = limit - min(cache, _cached_bytes(config, net, len(images)))
    chunk = largest_chunk(net, stages(config), partial(first_batch, config, net, images.images), free)
    if chunk is not None:
        log.info("Training in chunks of %d images fits in %s.", chunk, training.memory_limit)
    return replace(config, training=replace(training, chunk=chunk, cache_limit=f"{cache}B"))


def first_batch(config: Config, net: Network, images: Images, stage: Stage) -> LazyBatch:
    """A batch that the stage sees, after the network got the first notes of a client with these images."""
    device, draw = device_of(net), generator(config.general.seed, "chunk")
    notes = stage.first_notes(net, len(images))
    net.notes = {name: value.to(device) for name, value in notes.items()}
    source = BatchSource(images, config.views, config.training.batch_size, device)
    return next(source.epoch(stage.sees, net.notes, draw))


def _cached_bytes(config: Config, net: Network, images: int) -> int:
    """Bytes of the features that the stages would cache for this number of images."""
    views = max((stage.views_per_image for stage in stages(config)), default=0)
    return views * bytes_of_view(net.online.encoder) * images


def build_network(config: Config, channels: int) -> Network:
    """The method's network with its first weights, on the configured device."""
    with torch.random.fork_rng(devices=[]):  # constructors draw weights: the global generator stays as it was
        net = bare_network(config, channels)
    initialise(net, generator(config.general.seed, "weights"))
    # Channels last: pooling and convolutions of few channels run several times faster on CPUs.
    net.to(find_device(config.general.device), memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.training.compile and config.views.size is not None:
        compile_encoders(net, (channels, config.views.size, config.views.size))
    return net


def bare_network(config: Config, channels: int) -> Network:
    """The method's network with the weights that the modules' constructors draw."""
    general, size = config.general, config.views.size
    if general.clusters is None or size is None:
        raise InputError("The configuration is not complete: it needs clusters and views.size.")
    _check_frozen(config)
    encoder = config.encoder.build(channels, size)
    features = encoder.features
    assert isinstance(features, int)
    net = config.method.build(encoder, features, general.clusters)
    if net.online.cluster_projector is not None and config.clustering.stages():
        raise InputError("The method has a cluster head of its own: leave out the section [clustering].")
    width = net.online.encoder.features  # of a code, if the method adds one to the encoder
    assert isinstance(width, int)
    config.clustering.extend(net, width, general.clusters)
    return net


def _check_frozen(config: Config) -> None:
    """Refuse stages that would train a frozen encoder."""
    if not is_frozen(config.encoder):
        return
    for stage in stages(config):
        if any(part == "online" or part.startswith("online.encoder") for part in stage.trained):
            raise InputError(
                f"The encoder is frozen, but the stage {stage.name} trains it: set method.name to raw and "
                "clustering.name to a clustering, such as neighbours."
            )


def fingerprint(net: Network, config: Config) -> str:
    """Hash of what two machines must agree on to train one network: tensors, stages, pretrained files."""
    tensors = [f"{name} {value.dtype} {tuple(value.shape)}" for name, value in net.state_dict().items()]
    names = [stage.name for stage in stages(config)]
    files = [str(identity)] if (identity := getattr(net.online.encoder, "identity", None)) else []
    return sha256("\n".join([*tensors, *names, *files]).encode()).hexdigest()
