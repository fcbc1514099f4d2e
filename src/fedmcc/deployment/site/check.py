"""A site's own look at its images before it joins: nothing of it leaves the site."""

import resource
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.data.partition import PartitionOptions
from fedmcc.deployment.site.worker import files_of
from fedmcc.errors import InputError
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.methods.base import Stage
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import select
from fedmcc.runs import build
from fedmcc.training.loop import lazy_pairs, train, trainable

CLUSTERS = 10  # where the recipe leaves them open: they hardly change time or memory
STEPS = 3  # the first of them loads code and is not timed
START = 10.0  # seconds in which a site's process starts for a round, 7 to 15 where it was measured


class Sizes(NamedTuple):
    """The files as they lie on disk."""

    smallest: tuple[int, int]  # width and height
    median: tuple[int, int]
    largest: tuple[int, int]
    bytes: int


class Load(NamedTuple):
    """What a round of a stage costs this machine, about."""

    stage: str
    seconds: float
    sent: int  # bytes of weights, each way


@dataclass(frozen=True, eq=False)
class Survey:
    """What a site would bring, and what it would take."""

    images: ImageSet
    sizes: Sizes
    loads: tuple[Load, ...]
    memory: int  # bytes of a process that trains, at its peak


def resolve_recipe(data: Path, recipe: Path | None) -> config.Config:
    """The recipe as it would be run on these images alone."""
    loaded = config.parse({}) if recipe is None else config.load(recipe)
    return replace(
        loaded,
        general=replace(loaded.general, clusters=loaded.general.clusters or CLUSTERS),
        data=files_of(loaded.data, data.resolve()),
        partition=PartitionOptions(),
        federation=replace(loaded.federation, fraction=1.0, count=None, only=None, minimum=1),
        evaluation=replace(loaded.evaluation, split=None),
        engine=EmbeddedOptions(),
    )


def survey(loaded: config.Config) -> Survey:
    """Look at all images and train a few steps of every stage on them."""
    images = loaded.data.load()
    few = min(loaded.training.batch_size, len(images))
    if few < 2:
        raise InputError("A site needs 2 images or more: contrast is between images.")
    loaded = replace(loaded, training=replace(loaded.training, batch_size=few))
    experiment = build.assemble(replace(loaded, general=_possible(loaded.general, len(images))), images)
    loads = tuple(_load(experiment, stage) for stage in experiment.stages if stage.trained)
    root = files_of(loaded.data, loaded.data.root or Path()).listing().root  # may lie below data.root
    return Survey(images, _sizes(root, images), loads, _memory(next(experiment.net.parameters()).device))


def _possible(general: config.General, images: int) -> config.General:
    """No more clusters than images: a site may hold a few, all sites together many."""
    return replace(general, clusters=max(2, min(general.clusters or CLUSTERS, images)))


def _load(experiment: build.Experiment, stage: Stage) -> Load:
    net, settings = experiment.net, experiment.config
    images, training = experiment.images.images, settings.training
    device, batch = next(net.parameters()).device, training.batch_size
    draw = generator(settings.general.seed, "survey", stage.name)
    epochs = (lazy_pairs(images, settings.views, batch, draw, device) for _ in range(STEPS))
    pairs = islice((pair for epoch in epochs for pair in epoch), STEPS)
    steps = train(net, stage, pairs, training.build_optimizer(trainable(net, stage)), training.chunks(batch))
    next(steps)
    started = time.perf_counter()
    timed = sum(1 for _ in steps)
    each = (time.perf_counter() - started) / timed
    sent = sum(value.nbytes for value in select(net.state_dict(), stage.shared).values())
    return Load(stage.name, START + each * stage.epochs * (len(images) // batch), sent)


def _sizes(root: Path, images: ImageSet) -> Sizes:
    from PIL import Image

    shapes, total = [], 0
    for name in images.names or ():
        total += (root / name).stat().st_size
        with Image.open(root / name) as image:
            shapes.append(image.size)
    widths, heights = zip(*shapes, strict=True)
    by_area = sorted(shapes, key=lambda shape: shape[0] * shape[1])
    return Sizes(by_area[0], (int(median(widths)), int(median(heights))), by_area[-1], total)


def _memory(device: torch.device) -> int:
    """Of the accelerator that was used, else of this process, which has just done what a round does."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
