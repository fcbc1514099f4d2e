"""Measure before a run whether options that are meant to save time do so on this CPU."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.inference import device_of
from fedmcc.networks.momentum import Network
from fedmcc.training.loop import Training
from fedmcc.training.torch_setup import TEST_IMAGES, autocast_dtype

log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0  # of an option; a first pass of each kind is not counted
MAX_PASSES = 20
SLOWER = "%s makes this CPU slower: a forward pass has %.2f times its speed without it. Set it to %s."


def warn_of_slow_options(net: Network, shape: tuple[int, int, int], training: Training) -> None:
    """Log a warning if `precision` or `compile` slows down the encoder on this CPU.

    Forward passes in inference mode are timed: weights, statistics and random numbers stay as they are.
    """
    encoder, dtype = net.online.encoder, autocast_dtype(training.precision)
    if device_of(encoder).type != "cpu" or isinstance(encoder, FrozenEncoder):
        return
    images = torch.zeros((TEST_IMAGES, *shape))

    def plain() -> None:
        encoder.forward(images)  # not compiled, unlike a call of the encoder

    def lower() -> None:
        with torch.autocast("cpu", dtype):
            encoder.forward(images)

    with _inference(encoder):
        if dtype is not None:
            _warn_if_slower('training.precision = "bfloat16"', "float32", relative_speed(plain, lower))
        if encoder._compiled_call_impl is not None:
            compiled = relative_speed(plain, lambda: encoder(images))
            _warn_if_slower("training.compile = true", "false", compiled)


def relative_speed(plain: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times faster `other` is than `plain`, by the fastest of alternating calls."""
    seconds: dict[Callable[[], object], list[float]] = {plain: [], other: []}
    for run in seconds:
        run()
    end = time.perf_counter() + PROBE_SECONDS
    while not seconds[other] or (time.perf_counter() < end and len(seconds[other]) < MAX_PASSES):
        for run, taken in seconds.items():
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return min(seconds[plain]) / min(seconds[other])


def _warn_if_slower(option: str, remedy: str, ratio: float) -> None:
    if ratio < 1:
        log.warning(SLOWER, option, ratio, remedy)


@contextmanager
def _inference(encoder: nn.Module) -> Iterator[None]:
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        encoder.train(training)
