"""Features of a frozen encoder, computed once in a stage: views of a client's images, and pairs of them.

They follow from the seed, the client, the stage and the encoder: who has lost them computes the same again.
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
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import State, detached, equal_states
from fedmcc.training.loop import moved, shuffled
from fedmcc.views import Views

BATCH = 128  # images at a time, at most; a CPU gains nothing from more
BYTES = 4  # of a number
EXAMPLES = 8  # images on which folding is tried

Place = tuple[int, int, str]  # seed, client, stage
Features = Float[Tensor, "n v d"]  # of v views of each image


@dataclass(frozen=True, eq=False)
class Source:
    """Whose views are kept in which stage, and how many of each image."""

    images: Images
    views: Views
    per_image: int
    place: Place

    def features(self, encoder: nn.Module, batch: int) -> Features:
        """What the encoder makes of views drawn for this client and stage."""
        draw, count = generator(self.place[0], "cache", *self.place[1:]), len(self.images)
        drawn = [self.views.draw(count, draw) for _ in range(self.per_image)]
        device, batch = next(encoder.parameters()).device, min(batch, BATCH)
        features = torch.empty((count, self.per_image, _width(encoder)), device=device)
        with torch.no_grad():
            for start in range(0, count, batch):
                rows = slice(start, start + batch)
                images = moved(self.images[rows], device)
                for number, parameters in enumerate(drawn):
                    view = self.views.apply(images, parameters.take(rows))
                    encoder = encoder if start or number else fuse_batchnorm(encoder, view[:EXAMPLES])
                    features[rows, number] = encoder(view)
        return features

    def bytes(self, encoder: nn.Module) -> int:
        """How much the features take."""
        return len(self.images) * self.per_image * bytes_of_view(encoder)


def bytes_of_view(encoder: nn.Module) -> int:
    """How much the features of one view take."""
    return _width(encoder) * BYTES


def _width(encoder: nn.Module) -> int:
    assert isinstance(encoder.features, int)
    return encoder.features


class _Kept(NamedTuple):
    images: Images
    per_image: int
    features: Features


class FeatureCache:
    """Features by client and stage, in one of some processes that share a limit; pickled, it arrives empty.

    Clients take turns, so that what was used last is needed last: it leaves first where there is no room.
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._kept: OrderedDict[Place, _Kept] = OrderedDict()
        self._encoder: State = {}

    def __reduce__(self) -> tuple[type["FeatureCache"], tuple[int]]:
        return FeatureCache, (self.processes,)

    @property
    def bytes(self) -> int:
        """How much is kept."""
        return sum(kept.features.nbytes for kept in self._kept.values())

    def get(self, source: Source, encoder: nn.Module, batch: int, limit: int) -> Features:
        """The features of a source; beside them this process keeps no more than its part of the limit."""
        self._expect(encoder)
        kept = self._kept.pop(source.place, None)
        if kept is None or kept.images is not source.images or kept.per_image != source.per_image:
            self._make_room(limit // self.processes - source.bytes(encoder))
            kept = _Kept(source.images, source.per_image, source.features(encoder, batch))
        self._kept[source.place] = kept
        return kept.features

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._encoder = {}

    def _expect(self, encoder: nn.Module) -> None:
        """Forget everything that was made with another encoder."""
        state = encoder.state_dict()
        if not equal_states(state, self._encoder):
            self.clear()
            self._encoder = detached(state)

    def _make_room(self, limit: int) -> None:
        while self._kept and self.bytes > limit:
            self._kept.popitem()


def pairs_of_features(
    features: Features, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in random order, of two different views of every image."""
    count = features.shape[1]
    for order in shuffled(len(features), batch_size, generator):
        first = torch.randint(count, (batch_size,), generator=generator)
        apart = torch.randint(1, count, (batch_size,), generator=generator)
        rows, a, b = (index.to(features.device) for index in (order, first, (first + apart) % count))
        yield features[rows, a], features[rows, b]
