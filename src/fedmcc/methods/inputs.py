"""What a stage is given: tensors of each image in a step, and all images before an epoch."""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

PARTNERS = (
    "partners"  # note that PARTNER reads: candidates of each image, int64, images x partners x candidates
)


class Sight(Enum):
    """A tensor that `Stage.represent` gets for a batch of images."""

    VIEW = auto()  # a random view of each image
    PLAIN = auto()  # each image without augmentation, resized and scaled
    PARTNER = (
        auto()
    )  # a random view of another image; the j-th PARTNER is drawn from `notes["partners"][:, j]`
    ROW = auto()  # the number of each image at its client, int64
    PARTNER_ROW = auto()  # the numbers of the partners, int64, a column for each PARTNER, but at least one


VIEW, PLAIN, PARTNER = Sight.VIEW, Sight.PLAIN, Sight.PARTNER
ROW, PARTNER_ROW = Sight.ROW, Sight.PARTNER_ROW
Sights = tuple[Sight, ...]
VIEW_PAIR: Sights = (VIEW, VIEW)


class Overview(NamedTuple):
    """All images of a client before an epoch, and the number of the epoch.

    Parameters
    ----------
    batches
        Returns all images of the client in order, without augmentation; it can be called several times.
    epoch
        Number of the epoch in the stage, from 0, over all rounds.
    epochs
        Number of epochs of the stage, in all rounds.
    seed
        For k-means and other random choices; it differs between clients, rounds and epochs.
    """

    batches: Callable[[], Iterator[Tensor]]
    epoch: int
    epochs: int
    seed: int

    def features(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows of `of(batch)` for all images, in order."""
        return torch.cat([of(batch) for batch in self.batches()])

    @property
    def passed(self) -> float:
        """The fraction of the stage that is done, from 0 to below 1."""
        return self.epoch / self.epochs
