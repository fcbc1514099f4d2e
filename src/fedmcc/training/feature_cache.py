"""Features of a frozen encoder for several views of a client's images, computed once per stage.

They depend only on the seed, the client, the stage and the encoder, and can be recomputed at any time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.data.base import Images
from fedmcc.networks.fuse_batchnorm import fuse_batchnorm
from fedmcc.networks.inference import device_of
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import State, detached, equal_states
from fedmcc.training.batches import shuffled_batches, to_device
from fedmcc.views import Views

MAX_BATCH = 128  # images per forward pass; larger batches are not faster on a CPU
BYTES_PER_NUMBER = 4
TEST_IMAGES = 8  # images on which the fused encoder is checked

CacheKey = tuple[int, int, str]  # seed, client, stage
Features = Float[Tensor, "n v d"]  # n images, v views of each, d features


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """The images and views whose features are cached: for one client and stage, `per_image` views each."""

    images: Images
    views: Views
    per_image: int
    key: CacheKey

    def features(self, encoder: nn.Module, batch: int) -> Features:
        """Features of the views drawn for this client and stage."""
        draw, count = generator(self.key[0], "cache", *self.key[1:]), len(self.images)
        drawn = [self.views.draw(count, draw) for _ in range(self.per_image)]
        device, batch = device_of(encoder), min(batch, MAX_BATCH)
        features = torch.empty((count, self.per_image, _width(encoder)), device=device)
        with torch.no_grad():
            for start in range(0, count, batch):
                rows = slice(start, start + batch)
                images = to_device(self.images[rows], device)
                for number, parameters in enumerate(drawn):
                    view = self.views.apply(images, parameters.take(rows))
                    encoder = encoder if start or number else fuse_batchnorm(encoder, view[:TEST_IMAGES])
                    features[rows, number] = encoder(view)
        return features

    def bytes(self, encoder: nn.Module) -> int:
        """Size of the features in bytes."""
        return len(self.images) * self.per_image * bytes_of_view(encoder)


def bytes_of_view(encoder: nn.Module) -> int:
    """Size of the features of one view in bytes."""
    return _width(encoder) * BYTES_PER_NUMBER


def _width(encoder: nn.Module) -> int:
    assert isinstance(encoder.features, int)
    return encoder.features


class _Entry(NamedTuple):
    images: Images
    per_image: int
    features: Features


class FeatureCache:
    """Features by client and stage, in one of several processes that share a memory limit.

    Clients take turns, so that the entry used last is needed last: it is evicted first. A pickled cache is
    empty when it is loaded.
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._entries: OrderedDict[CacheKey, _Entry] = OrderedDict()
        self._encoder: State = {}

    def __reduce__(self) -> tuple[type["FeatureCache"], tuple[int]]:
        return FeatureCache, (self.processes,)

    @property
    def bytes(self) -> int:
        """Size of all cached features in bytes."""
        return sum(entry.features.nbytes for entry in self._entries.values())

    def get(self, source: FeatureSource, encoder: nn.Module, batch: int, limit: int) -> Features:
        """The features of a source, cached or computed; others are evicted to stay within the limit."""
        self._clear_if_changed(encoder)
        entry = self._entries.pop(source.key, None)
        if entry is None or entry.images is not source.images or entry.per_image != source.per_image:
            self._evict(limit // self.processes - source.bytes(encoder))
            entry = _Entry(source.images, source.per_image, source.features(encoder, batch))
        self._entries[source.key] = entry
        return entry.features

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._encoder = {}

    def _clear_if_changed(self, encoder: nn.Module) -> None:
        """Remove all entries if they were computed with another encoder."""
        state = encoder.state_dict()
        if not equal_states(state, self._encoder):
            self.clear()
            self._encoder = detached(state)

    def _evict(self, limit: int) -> None:
        while self._entries and self.bytes > limit:
            self._entries.popitem()


def feature_pairs(
    features: Features, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch in random order, with the features of two different views of each image."""
    count = features.shape[1]
    for order in shuffled_batches(len(features), batch_size, generator):
        first = torch.randint(count, (batch_size,), generator=generator)
        offset = torch.randint(1, count, (batch_size,), generator=generator)
        rows, a, b = (index.to(features.device) for index in (order, first, (first + offset) % count))
        yield features[rows, a], features[rows, b]
