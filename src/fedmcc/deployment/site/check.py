"""Measures a site's images and machine before it joins a federation; nothing is sent."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.data.partition import PartitionOptions
from fedmcc.deployment.site.worker import site_files, too_few_images
from fedmcc.errors import InputError
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.methods.base import Stage
from fedmcc.networks import in_files, native_size
from fedmcc.networks.inference import device_of
from fedmcc.numerics.state_dicts import select
from fedmcc.runs import build
from fedmcc.training.loop import train, trainable

DEFAULT_CLUSTERS = 10  # if the recipe does not set them: they hardly change time and memory
TIMED_STEPS = 3  # the first one loads code and is not timed
START_SECONDS = 10.0  # in which a site's process starts for a round; 7 to 15 were measured


class FileSizes(NamedTuple):
    """The sizes of the image files on disk."""

    smallest: tuple[int, int]  # width and height
    median: tuple[int, int]
    largest: tuple[int, int]
    bytes: int


class StageCost(NamedTuple):
    """The approximate cost of a round of one stage on this machine."""

    stage: str
    seconds: float
    sent: int  # bytes of weights, each way


@dataclass(frozen=True, eq=False)
class SiteReport:
    """The images of a site, and the cost of training on them."""

    images: ImageSet
    sizes: FileSizes
    costs: tuple[StageCost, ...]
    memory: int  # peak bytes of a process that trains


def resolve_recipe(data: Path, recipe: Path | None, encoder: Path | None = None) -> config.Config:
    """The recipe for a run on the images of this site only, with the site's own pretrained encoder."""
    loaded = _load(recipe)
    if recipe is not None and loaded.general.clusters is None and not loaded.evaluation.at_server:
        raise InputError(f"{recipe} does not set clusters, and the server has no labels to count: set them.")
    if encoder is not None:
        _check_encoder(loaded, recipe, encoder)
        loaded = _load(recipe, [f"encoder.path={encoder.resolve()}"])
    size = native_size(loaded.encoder) if in_files(loaded.encoder) else None
    return replace(
        loaded,
        general=replace(loaded.general, clusters=loaded.general.clusters or DEFAULT_CLUSTERS),
        data=site_files(loaded.data, data.resolve(), size),
        partition=PartitionOptions(),
        federation=replace(
            loaded.federation, fraction=1.0, count=None, only=None, minimum=None, secure_aggregation=False
        ),
        evaluation=replace(loaded.evaluation, split=None),
        engine=EmbeddedOptions(),
    )


def require_encoder(encoder: Path) -> None:
    """Raise InputError if there is neither a file nor a folder at --encoder."""
    if not encoder.exists():
        raise InputError(f"There is no encoder at {encoder}: give its file or folder as --encoder.")


def check_site(loaded: config.Config) -> SiteReport:
    """Read all images, and train a few steps of every stage on them."""
    images = loaded.data.load()
    batch_size = min(loaded.training.batch_size, len(images))
    if batch_size < 2:
        raise InputError("A site needs at least 2 images: the methods contrast images with each other.")
    if reason := too_few_images(loaded, images.images):
        raise InputError(reason)
    loaded = replace(loaded, training=replace(loaded.training, batch_size=batch_size))
    general = _with_possible_clusters(loaded.general, len(images))
    experiment = build.assemble(replace(loaded, general=general), images)
    costs = tuple(_cost(experiment, stage) for stage in experiment.stages if stage.trained)
    root = site_files(loaded.data, loaded.data.root or Path()).listing().root  # may be below data.root
    device = device_of(experiment.net)
    return SiteReport(images, _file_sizes(root, images), costs, _peak_memory(device))


def _load(recipe: Path | None, settings: Sequence[str] = ()) -> config.Config:
    """The recipe, or the default options without one."""
    return config.load_config({} if recipe is None else recipe, settings)


def _check_encoder(loaded: config.Config, recipe: Path | None, encoder: Path) -> None:
    """Raise InputError if --encoder does not exist, or if the encoder of the recipe is not in files."""
    if not in_files(loaded.encoder):
        name = config.name_of("encoder", loaded.encoder)
        owner, remedy = (f"of {recipe}", "") if recipe else ("without a recipe", ", or give --recipe")
        raise InputError(f"The encoder {owner} is {name}, which takes no file: leave out --encoder{remedy}.")
    require_encoder(encoder)


def _with_possible_clusters(general: config.General, images: int) -> config.General:
    """At most as many clusters as images: one site may have fewer images than the federation has clusters."""
    return replace(general, clusters=max(2, min(general.clusters or DEFAULT_CLUSTERS, images)))


def _cost(experiment: build.Experiment, stage: Stage) -> StageCost:
    net, images = experiment.net, experiment.images.images
    training = experiment.config.training
    batches = [build.first_batch(experiment.config, net, images, stage)] * TIMED_STEPS
    optimizer, chunks = training.build_optimizer(trainable(net, stage)), training.chunks(training.batch_size)
    steps = train(net, stage, batches, optimizer, chunks)
    next(steps)
    started = time.perf_counter()
    timed = sum(1 for _ in steps)
    seconds = (time.perf_counter() - started) / timed
    sent = sum(value.nbytes for value in select(net.state_dict(), stage.shared).values())
    return StageCost(
        stage.name, START_SECONDS + seconds * stage.epochs * (len(images) // training.batch_size), sent
    )


def _file_sizes(root: Path, images: ImageSet) -> FileSizes:
    from PIL import Image

    shapes, total = [], 0
    for name in images.names or ():
        total += (root / name).stat().st_size
        with Image.open(root / name) as image:
            shapes.append(image.size)
    widths, heights = zip(*shapes, strict=True)
    by_area = sorted(shapes, key=lambda shape: shape[0] * shape[1])
    return FileSizes(by_area[0], (int(median(widths)), int(median(heights))), by_area[-1], total)


def _peak_memory(device: torch.device) -> int:
    """Peak bytes of the accelerator if there is one, else of this process, which has just trained."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
