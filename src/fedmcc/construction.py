"""From a configuration to the network that it describes: its stages, weights, device and chunks."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch

from fedmcc.acceleration import compile_encoders, set_up_torch
from fedmcc.client import Client
from fedmcc.config import Config
from fedmcc.data.base import Images, ImageSet
from fedmcc.data.picture import Sides
from fedmcc.data.tree import ImageFiles
from fedmcc.errors import InputError
from fedmcc.feature_cache import FeatureCache, bytes_of_view
from fedmcc.fitting import largest_chunk
from fedmcc.memory import memory_size
from fedmcc.methods.base import Stage
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Network
from fedmcc.randomness import generator
from fedmcc.training import drawn_pairs

log = logging.getLogger(__name__)

CACHED_SHARE = 0.25  # of training.memory_limit, at most, for features that are kept


def stages(config: Config) -> tuple[Stage, ...]:
    """All stages of a run, in order."""
    return (*config.method.stages(), *config.clustering.stages())


def owner(config: Config, index: int, images: Images, cache: FeatureCache) -> Client:
    """A client as the configuration wants it, wherever it is; it never sees a label."""
    return Client(
        index,
        images,
        config.views,
        config.training,
        config.general.seed,
        clip=config.privacy.clip,
        cache=cache,
    )


def workshop(config: Config, images: ImageSet) -> tuple[Callable[[], Network], Config]:
    """How this process makes a network and trains it, and the configuration with the chunk that fits."""
    set_up_torch(config.general.thread_count)
    make = partial(build_network, config, channels=images.images.shape[1])
    return make, _with_chunk(config, make, images)


def _with_chunk(config: Config, make: Callable[[], Network], images: ImageSet) -> Config:
    """The configuration with the largest chunk that fits, if that was left to be found out."""
    training = config.training
    if training.chunk != "auto" or training.memory_limit is None:
        return config
    net = make()  # measuring changes it
    draw, device = generator(config.general.seed, "chunk"), next(net.parameters()).device
    pair = next(drawn_pairs(images.images, config.views, training.batch_size, draw, device))
    limit = memory_size(training.memory_limit, "training.memory_limit")
    cache = min(training.cache_bytes, int(CACHED_SHARE * limit))
    chunk = largest_chunk(net, stages(config), pair, limit - min(cache, _kept(config, net, len(images))))
    log.info("Training in chunks of %d images fits in %s.", chunk, training.memory_limit)
    return replace(config, training=replace(training, chunk=chunk, cache_limit=f"{cache}B"))


def _kept(config: Config, net: Network, images: int) -> int:
    """Bytes of features that the stages would keep of so many images."""
    views = max(stage.views_per_image for stage in stages(config))
    return views * bytes_of_view(net.online.encoder) * images


def build_network(config: Config, channels: int) -> Network:
    """The method's network with its first weights, on the configured device."""
    with torch.random.fork_rng(devices=[]):  # modules draw weights when they are made: nobody shall notice
        net = bare_network(config, channels)
    initialise(net, generator(config.general.seed, "weights"))
    # Channels last: pooling and convolutions of few channels run several times faster on CPUs.
    net.to(find_device(config.general.device), memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.training.compile and config.views.size is not None:
        compile_encoders(net, (channels, config.views.size, config.views.size))
    return net


def bare_network(config: Config, channels: int) -> Network:
    """The same with whatever weights modules are made with."""
    general, size = config.general, config.views.size
    if general.clusters is None or size is None:
        raise InputError("The configuration is not complete: it needs clusters and views.size.")
    encoder = config.encoder.build(channels, size)
    features = encoder.features
    assert isinstance(features, int)
    net = config.method.build(encoder, features, general.clusters)
    if net.online.cluster_projector is not None and config.clustering.stages():
        raise InputError("The method has a cluster head of its own: leave out the section [clustering].")
    config.clustering.extend(net, features, general.clusters)
    return net


def without_first_weights(config: Config) -> Config:
    """The configuration for a network that a checkpoint fills: pretrained files need not be there."""
    encoder: Any = config.encoder
    return replace(config, encoder=replace(encoder, weights=None)) if hasattr(encoder, "weights") else config


def fingerprint(net: Network, config: Config) -> str:
    """What two machines must agree on to train one network: its tensors by name, and the stages."""
    tensors = [f"{name} {value.dtype} {tuple(value.shape)}" for name, value in net.state_dict().items()]
    names = [stage.name for stage in stages(config)]
    return sha256("\n".join([*tensors, *names]).encode()).hexdigest()


def told_sides(config: Config) -> Sides | None:
    """Height and width of the images as the configuration tells them: of decoded files, else of views."""
    size = config.data.size if isinstance(config.data, ImageFiles) else config.views.size
    return None if size is None else (size, size)


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator, or the CPU where there is none."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        raise InputError(f"There is no device '{name}' here: set device to auto or cpu.") from None
    return device
