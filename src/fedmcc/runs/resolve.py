"""Completes a configuration from the images and the machine, and checks it; `build` makes objects of it."""

import logging
import math
from dataclasses import replace
from typing import Any

import torch

from fedmcc.config import Config
from fedmcc.data import partition
from fedmcc.data.base import ImageSet
from fedmcc.data.decode import HeightWidth
from fedmcc.data.image_files import ImageFiles
from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.methods.centroids import SMALLEST_ALONE, SMALLEST_CLUSTER
from fedmcc.methods.choosing import chooses, most_clusters
from fedmcc.networks import native_size, resolve_encoder
from fedmcc.training.torch_setup import find_device, resolve_precision

log = logging.getLogger(__name__)


def stages(config: Config) -> tuple[Stage, ...]:
    """All stages of a run, in order: those of the method, then those of the clustering."""
    return (*config.method.stages(), *config.clustering.stages())


def resolve(config: Config, images: ImageSet) -> Config:
    """Fill in every option that depends on the images or on the machine."""
    general = replace(
        config.general,
        clusters=config.general.clusters or count_classes(images),
        device=str(find_device(config.general.device)),
        threads=config.general.thread_count,
    )
    training = config.training
    precision = resolve_precision(training.precision, torch.device(general.device))
    keep = training.keep_optimizer
    sharing = partition.resolve(config.partition, images)
    size = config.views.size or native_size(config.encoder) or min(images.images.shape[2:])
    return replace(
        config,
        general=general,
        engine=config.engine.resolve(),
        encoder=resolve_encoder(config.encoder),
        views=replace(config.views, size=size),
        partition=sharing,
        training=replace(
            training, keep_optimizer=sharing.clients == 1 if keep is None else keep, precision=precision
        ),
    )


def with_statistics(config: Config, images: ImageSet | None) -> Config:
    """How many images a centroid must represent, unless it is stated; at sites, there are no `images`.

    A single client on this machine sends its centroids to nobody.
    """
    alone = config.partition.clients == 1 and images is not None
    smallest = SMALLEST_ALONE if alone else SMALLEST_CLUSTER

    def completed(options: Any) -> Any:
        return replace(options, smallest=smallest) if getattr(options, "smallest", ...) is None else options

    return replace(config, method=completed(config.method), clustering=completed(config.clustering))


def count_classes(images: ImageSet) -> int:
    """Number of classes among the labels."""
    labels = images.labels
    count = 0 if labels is None else len({int(label) for label in labels} - {-1})
    if count < 2:
        raise InputError(
            "The images have no labels to count: set the number of clusters, such as --clusters 10."
        )
    return count


def check(config: Config) -> None:
    """Refuse stages and federations that cannot work, whatever the images."""
    if not stages(config):
        raise InputError(
            "The run has no stage, the method only encodes images: set clustering.name, such as lloyd."
        )
    for stage in stages(config):
        if stage.rounds < 1 or (stage.trained and stage.epochs < 1):
            section = "clustering" if stage in config.clustering.stages() else "method"
            raise InputError(
                f"The stage {stage.name} has {stage.rounds} rounds of {stage.epochs} epochs: "
                f"set {section}.rounds and {section}.epochs to 1 or more."
            )
    config.federation.size(config.partition.clients)  # raises InputError if no client could take part
    if (
        config.federation.secure_aggregation
        and config.privacy.clip is None
        and math.isinf(config.federation.norm_limit)
    ):
        raise InputError(
            "federation.norm_limit is inf, but with federation.secure_aggregation any client could then "
            "replace the model unseen: set federation.norm_limit to a number such as 10, or set privacy.clip."
        )
    config.privacy.require_accountant()
    if config.privacy.noise and config.federation.aggregation not in (None, "mean"):
        raise InputError(
            f"privacy.noise protects only a mean of updates, but federation.aggregation is "
            f"'{config.federation.aggregation}': leave one of them out."
        )


def check_images(config: Config, images: ImageSet) -> None:
    """Refuse more clusters than there are images."""
    clusters, count = config.general.clusters or 0, len(images)
    if clusters > count:
        skipped = len(images.skipped)
        reason = f", and {skipped} {'file was' if skipped == 1 else 'files were'} skipped" if skipped else ""
        counted = "1 image" if count == 1 else f"{count} images"
        raise InputError(f"{clusters} clusters of {counted}{reason}: lower clusters or give more images.")


def with_possible_clusters(config: Config, images: ImageSet) -> Config:
    """The configuration with a largest number of clusters that fits the images, if the number is chosen."""
    stated = config.general.clusters
    if stated is None or not chooses(config.clustering):
        return config
    return replace(config, general=replace(config.general, clusters=most_clusters(stated, len(images))))


def with_possible_batch(config: Config, images: ImageSet) -> Config:
    """The configuration with a batch that is not larger than the data."""
    training, count = config.training, max(len(images), 2)
    if training.batch_size <= count:
        return config
    log.warning("training.batch_size is %d: batches have all %d images.", training.batch_size, count)
    return replace(config, training=replace(training, batch_size=count))


def without_first_weights(config: Config) -> Config:
    """The configuration for a network that a checkpoint fills: files of pretrained weights are not read."""
    encoder: Any = config.encoder
    return replace(config, encoder=replace(encoder, weights=None)) if hasattr(encoder, "weights") else config


def image_sides(config: Config) -> HeightWidth | None:
    """Height and width of the images if the configuration sets them: of decoded files, else of views."""
    size = config.data.size if isinstance(config.data, ImageFiles) else config.views.size
    return None if size is None else (size, size)
