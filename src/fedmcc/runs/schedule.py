"""Chooses how to train on a folder of images in a given time, from a survey and a measurement."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedmcc.config import Config
from fedmcc.data.base import ImageSet
from fedmcc.data.survey import Survey
from fedmcc.evaluation.features import encode
from fedmcc.methods.base import Stage
from fedmcc.runs import build
from fedmcc.training.loop import train, trainable

MIN_SIZE, MAX_SIZE = 8, 64  # pixels of decoded images: larger ones take time in proportion to their area
SIZES = (64, 48, 32)  # of views, largest first
MIN_EPOCHS = 20  # below, smaller views learn more in the same time, and the clusters mean little
MAX_EPOCHS = 300  # more hardly change the clusters
TIMED_STEPS, TIMED_IMAGES = 3, 256
MAX_TIMED_SECONDS = 2.0  # after which no further step is timed
TRAINING_SHARE = 0.9  # of the time that is left; the rest is for clustering, scores and the report
TOO_FEW = f"Clusters mean little after fewer than {MIN_EPOCHS} epochs: use a longer --time, or fewer images."
PASSES = 12  # over all images without training: scores during the run, prototypes, final scores


def choose_size(sides: Sequence[tuple[int, int]]) -> int:
    """Side in pixels to decode images to: the median of the shorter sides, but not more than MAX_SIZE."""
    shorter = sorted(map(min, sides)) or [MAX_SIZE]
    return max(MIN_SIZE, min(MAX_SIZE, shorter[len(shorter) // 2]))


def choose_views(survey: Survey) -> tuple[str, str]:
    """The preset of views that fits, with the reason."""
    if not survey.grey:
        return "photo", "the images are in colour"
    if min(survey.median) <= 32:
        return "digits", "the images are small and grey"
    return "medical", "the images are grey"


@dataclass(frozen=True)
class Schedule:
    """How long to train: the size of views, epochs, and the measured seconds of an epoch."""

    size: int
    epochs: int
    epoch_seconds: float
    pass_seconds: float  # of one pass over all images without training

    @property
    def seconds(self) -> float:
        """Predicted duration of the whole command from now on."""
        return (self.epochs * self.epoch_seconds + PASSES * self.pass_seconds) / TRAINING_SHARE


def plan_schedule(config: Config, images: ImageSet, seconds: float) -> Schedule:
    """Measure a few steps, and choose the largest views of which enough epochs fit in the time.

    The time of smaller views is first estimated from their area, then measured for the chosen size.
    """
    end, sizes = time.perf_counter() + seconds, [*_sizes(min(images.images.shape[2:]))]
    first = _measure(_at_size(config, sizes[0]), images)
    chosen = sizes[-1]
    for size in sizes:
        share = (size / sizes[0]) ** 2
        estimated = Schedule(size, 0, first[0] * share, first[1] * share)
        if _fit(estimated, end - time.perf_counter()).epochs >= MIN_EPOCHS:
            chosen = size
            break
    measured = first if chosen == sizes[0] else _measure(_at_size(config, chosen), images)
    return _fit(Schedule(chosen, 0, *measured), end - time.perf_counter())


def with_schedule(config: Config, schedule: Schedule) -> Config:
    """The configuration with the size, the epochs and few scores on the way."""
    method: Any = config.method
    evaluation = replace(config.evaluation, every=max(1, math.ceil(schedule.epochs / 4)))
    sized = _at_size(config, schedule.size)
    return replace(sized, method=replace(method, rounds=schedule.epochs), evaluation=evaluation)


def _sizes(decoded: int) -> Iterator[int]:
    yield decoded
    yield from (size for size in SIZES if size < decoded)


def _at_size(config: Config, size: int) -> Config:
    return replace(config, views=replace(config.views, size=size))


def _fit(measured: Schedule, seconds: float) -> Schedule:
    """As many epochs as fit into the time, 2 at least: one for each kind of contrast."""
    training = seconds * TRAINING_SHARE - PASSES * measured.pass_seconds
    epochs = int(training / measured.epoch_seconds)
    return replace(measured, epochs=max(2, min(MAX_EPOCHS, epochs)))


def _measure(config: Config, images: ImageSet) -> tuple[float, float]:
    """Seconds of an epoch of training, and of a pass without training, on a network that is thrown away."""
    experiment = build.assemble(config, images)
    steps = [_step_seconds(experiment, stage) for stage in experiment.stages if stage.trained]
    per_epoch = sum(map(experiment.engine.images_per_epoch, experiment.clients))
    epoch = sum(steps) / len(steps) * per_epoch / experiment.config.training.batch_size
    some = images.images[:TIMED_IMAGES]
    started = time.perf_counter()
    encode(experiment.net.online.encoder, some, experiment.config.views.plain)
    return epoch, (time.perf_counter() - started) * len(images) / len(some)


def _step_seconds(experiment: build.Experiment, stage: Stage) -> float:
    """Mean seconds of a few steps of a stage after a first one."""
    config, net = experiment.config, experiment.net
    batches = [build.first_batch(config, net, experiment.images.images, stage)] * (TIMED_STEPS + 1)
    optimizer = config.training.build_optimizer(trainable(net, stage))
    steps = train(net, stage, batches, optimizer, config.training.chunks(config.training.batch_size))
    next(steps)
    started, count = time.perf_counter(), 0
    while count < TIMED_STEPS and (not count or time.perf_counter() - started < MAX_TIMED_SECONDS):
        next(steps)
        count += 1
    return (time.perf_counter() - started) / count
