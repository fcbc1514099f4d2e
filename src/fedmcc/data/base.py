"""What a data set provides to the rest of the package: images in memory or memory-mapped."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64, UInt8

from fedmcc.data.thinning import thinned_rows
from fedmcc.errors import InputError, unknown

Images = UInt8[np.ndarray, "n c h w"]
Labels = Int64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images, one per row, with optional labels, names and groups; training uses `images` alone.

    Parameters
    ----------
    images
        uint8 of shape (images, channels, height, width).
    labels
        Class of each image, an index of `classes`; -1: no label.
    classes
        Names of the classes.
    names
        Name of each image; None: images are named by their index.
    split
        Part of the data set, such as `train`.
    skipped
        "name: reason" of each file that could not be read as an image.
    groups
        Owner of each image, an index of `owners`; -1: no owner.
    owners
        Names of the groups.

    Examples
    --------
    >>> import numpy as np
    >>> from fedmcc import ImageSet
    >>> images = np.zeros((4, 1, 8, 8), dtype=np.uint8)
    >>> digits = ImageSet(images, labels=np.array([0, 1, 0, 1]), classes=("zero", "one"))
    >>> len(digits.take(slice(2)))
    2
    """

    images: Images
    labels: Labels | None = None
    classes: tuple[str, ...] = ()
    names: Sequence[str] | None = None
    split: str = "train"
    skipped: tuple[str, ...] = ()
    groups: Labels | None = None
    owners: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: slice | np.ndarray) -> "ImageSet":
        """Select the images at these rows, with their labels, names and groups."""
        labels = None if self.labels is None else self.labels[rows]
        groups = None if self.groups is None else self.groups[rows]
        names = None if self.names is None else list(np.asarray(self.names, dtype=object)[rows])
        return replace(self, images=self.images[rows], labels=labels, names=names, groups=groups)

    def skipped_message(self, max_named: int = 10) -> str | None:
        """Build a sentence that counts and lists the skipped files; None if no file was skipped."""
        if not self.skipped:
            return None
        more = len(self.skipped) - max_named
        named = "; ".join(self.skipped[:max_named]) + (f"; and {more} more" if more > 0 else "")
        files = "1 unreadable file" if len(self.skipped) == 1 else f"{len(self.skipped)} unreadable files"
        return f"Skipped {files}: {named}."


@dataclass(frozen=True)
class Source(ABC):
    """Options common to all data sets; an entry of `DATASETS` adds its own options and `read`.

    Parameters
    ----------
    root
        The folder of the files; None: the download cache.
    limit
        Number of images: the first ones, or evenly spread image files; None: all.
    thinned
        Ratio of the largest to the smallest class after random images were left out; 1: all images.
        It uses labels, so it is for simulated experiments only.
    thinning_seed
        Draws the order of the classes by size, and the images that are kept.

    Attributes
    ----------
    views : str
        Default preset of views, a key of `PRESETS`.
    splits : tuple[str, str] | None
        The split to learn labels from and the split to score; None: the data set has no splits.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from fedmcc import ImageSet, Source
    >>> @dataclass(frozen=True)
    ... class Noise(Source):
    ...     seed: int = 0
    ...     def read(self):
    ...         draw = np.random.default_rng(self.seed)
    ...         return ImageSet(draw.integers(256, size=(100, 1, 8, 8), dtype=np.uint8))
    >>> len(Noise(limit=10).load())
    10
    """

    views: ClassVar[str] = "photo"
    splits: ClassVar[tuple[str, str] | None] = None
    root: Path | None = None
    limit: int | None = None
    thinned: float = 1.0  # largest class divided by the smallest one; for simulated experiments only
    thinning_seed: int = 0

    def load(self) -> ImageSet:
        """Load at most `limit` images, from classes that are thinned first.

        These are the first ones, unless `read` applies the limit in its own way, as `ImageFiles` does.
        """
        if self.limit is not None and self.limit < 1:
            raise InputError(f"data.limit is {self.limit}: give 1 or more images.")
        images = self._thin(self.read())
        return images if self.limit is None else images.take(slice(self.limit))

    @abstractmethod
    def read(self) -> ImageSet:
        """Read the images of the data set."""

    def _thin(self, images: ImageSet) -> ImageSet:
        if self.thinned == 1:
            return images
        if not 1 < self.thinned < math.inf:  # also rejects NaN
            raise InputError(f"data.thinned is {self.thinned}: give 1 or more.")
        if self.thinning_seed < 0:
            raise InputError(f"data.thinning_seed is {self.thinning_seed}: give 0 or more.")
        if images.labels is None:
            raise InputError("data.thinned needs labels, which the images do not have: leave it out.")
        return images.take(thinned_rows(images.labels, self.thinned, self.thinning_seed))


def split_parts(split: str, known: Sequence[str]) -> list[str]:
    """Split a name such as `train+test` into its parts; each must be known and appear once."""
    parts = split.split("+")
    for part in parts:
        if part not in known:
            raise unknown("split", part, known)
    if len(set(parts)) < len(parts):
        raise InputError(f"The split '{split}' contains a part twice: give each part once.")
    return parts
