"""Batches of a client's images in random order: what a stage sees of them, computed on demand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmcc.data.base import Images
from fedmcc.methods.inputs import PARTNERS, VIEW_PAIR, Sight, Sights
from fedmcc.training.feature_files import FeatureFile
from fedmcc.training.timing import timed
from fedmcc.views import Views
from fedmcc.views.parameters import Parameters

RANDOM_VIEWS = (Sight.VIEW, Sight.PARTNER)


@dataclass(frozen=True, eq=False)
class BatchSource:
    """The images of a client, and how batches of them are augmented."""

    images: Images
    views: Views
    batch_size: int
    device: torch.device
    features: FeatureFile | None = None  # of a frozen encoder; PLAIN then gives them instead of images

    def epoch(
        self, sees: Sights, notes: Mapping[str, Tensor], generator: torch.Generator
    ) -> Iterator["LazyBatch"]:
        """Batches of one epoch in random order; an incomplete batch is dropped.

        `notes` has the candidates of each image's partners, if a stage sees partners.
        """
        for rows in shuffled_batches(len(self.images), self.batch_size, generator):
            with timed("views"):
                partners = _draw_partners(rows, _partner_columns(sees), notes, generator)
                drawn = [self.views.draw(len(rows), generator) for sight in sees if sight in RANDOM_VIEWS]
            yield LazyBatch(self, sees, rows.numpy(), partners.numpy(), tuple(drawn))


def _partner_columns(sees: Sights) -> int:
    """Partners of each image: one for each PARTNER; one without a view if only its number is seen."""
    return max(sees.count(Sight.PARTNER), int(Sight.PARTNER_ROW in sees))


def _draw_partners(
    rows: Tensor, count: int, notes: Mapping[str, Tensor], generator: torch.Generator
) -> Tensor:
    """For each row `count` partners, the j-th drawn from the row's candidates at j."""
    if not count:
        return torch.empty((len(rows), 0), dtype=torch.int64)
    candidates = notes[PARTNERS][rows.to(notes[PARTNERS].device)].cpu()
    chosen = torch.randint(candidates.shape[2], (len(rows), count, 1), generator=generator)
    return candidates.gather(2, chosen)[:, :, 0]


@dataclass(frozen=True, eq=False)
class LazyBatch:
    """A batch whose random numbers are drawn and whose views are computed on demand."""

    source: BatchSource
    sees: Sights
    rows: NDArray[np.int64]
    partners: NDArray[np.int64]  # a column for each PARTNER
    parameters: tuple[Parameters, ...]  # of each VIEW and PARTNER

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, ...]:
        with timed("views"):
            images, parameters = self._own_images(rows), iter(self.parameters)
            partners = iter(self.partners[rows].T)
            seen: list[Tensor] = []
            for sight in self.sees:
                match sight:
                    case Sight.VIEW:
                        seen.append(self._view(images, next(parameters).take(rows)))
                    case Sight.PARTNER:
                        seen.append(self._view(self._load(next(partners)), next(parameters).take(rows)))
                    case Sight.PLAIN:
                        seen.append(self._plain(images, self.rows[rows]))
                    case Sight.ROW:
                        seen.append(self._numbers(self.rows[rows]))
                    case Sight.PARTNER_ROW:
                        seen.append(self._numbers(self.partners[rows]))
            return tuple(seen)

    def _own_images(self, rows: slice) -> Tensor:
        """The images themselves, or no images if the stage sees only numbers."""
        needed = Sight.VIEW in self.sees or Sight.PLAIN in self.sees
        return self._load(self.rows[rows] if needed else self.rows[:0])

    def _load(self, rows: NDArray[np.int64]) -> Tensor:
        return to_device(self.source.images[rows], self.source.device)

    def _plain(self, images: Tensor, rows: NDArray[np.int64]) -> Tensor:
        source = self.source
        if source.features is not None:
            return source.features.read(rows).to(source.device)
        return source.views.plain(images)

    def _view(self, images: Tensor, parameters: Parameters) -> Tensor:
        return self.source.views.apply(images, parameters)

    def _numbers(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows).to(self.source.device)


def to_device(images: Images, device: torch.device) -> Tensor:
    """The images as a tensor on the device; copies to CUDA are asynchronous."""
    tensor = torch.from_numpy(
        np.require(images, requirements=["C", "W"])
    )  # memory-mapped images are read-only
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def lazy_pairs(
    images: Images, views: Views, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[LazyBatch]:
    """Batches of one epoch, of two views each; an incomplete batch is dropped."""
    return BatchSource(images, views, batch_size, device).epoch(VIEW_PAIR, {}, generator)


def shuffled_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row indices of the batches of one epoch in random order; an incomplete batch is dropped."""
    order = torch.randperm(count, generator=generator)
    for start in range(0, count - batch_size + 1, batch_size):
        yield order[start : start + batch_size]


def view_pairs(
    images: Images, views: Views, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch in random order, as two computed views each; an incomplete batch is dropped."""
    for batch in lazy_pairs(images, views, batch_size, generator, device):
        a, b = batch[:]
        yield a, b
