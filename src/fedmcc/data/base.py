"""What a data set is to the rest of the program: images in memory or mapped from disk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64, UInt8

from fedmcc.errors import InputError, unknown

Images = UInt8[np.ndarray, "n c h w"]
Labels = Int64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images, a row each, with what is known about them; training sees `images` alone."""

    images: Images
    labels: Labels | None = None  # -1: this image has none
    classes: tuple[str, ...] = ()
    names: Sequence[str] | None = None  # one per image; None: their index is their name
    split: str = "train"
    skipped: tuple[str, ...] = ()  # "name: reason" of each file that is no readable image
    groups: Labels | None = None  # whose image it is; -1: nobody's
    owners: tuple[str, ...] = ()  # the names of the groups

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: slice | np.ndarray) -> "ImageSet":
        """The images at these rows, with all that is known about them."""
        labels = None if self.labels is None else self.labels[rows]
        groups = None if self.groups is None else self.groups[rows]
        names = None if self.names is None else list(np.asarray(self.names, dtype=object)[rows])
        return replace(self, images=self.images[rows], labels=labels, names=names, groups=groups)

    def skipped_message(self, max_named: int = 10) -> str | None:
        """One sentence that counts and names the skipped files; None when there are none."""
        if not self.skipped:
            return None
        more = len(self.skipped) - max_named
        named = "; ".join(self.skipped[:max_named]) + (f"; and {more} more" if more > 0 else "")
        files = "1 file that is" if len(self.skipped) == 1 else f"{len(self.skipped)} files that are"
        return f"Skipped {files} no readable image: {named}."


@dataclass(frozen=True)
class Source:
    """Options that every data set has; an entry of DATASETS adds its own and `read`."""

    views: ClassVar[str] = "photo"  # the preset of views that fits these images
    splits: ClassVar[tuple[str, str] | None] = (
        None  # those to learn labels from and to score; None: it has none
    )
    root: Path | None = None  # the folder that holds the files; None: the download cache
    limit: int | None = None  # the first so many images; None: all

    def load(self) -> ImageSet:
        """The images, cut to `limit`."""
        if self.limit is not None and self.limit < 1:
            raise InputError(f"data.limit is {self.limit}: give a number of images of 1 or more.")
        images = self.read()
        return images if self.limit is None else images.take(slice(self.limit))

    def read(self) -> ImageSet:
        """All images of the set."""
        raise NotImplementedError


def split_parts(split: str, known: Sequence[str]) -> list[str]:
    """`train+test` as its parts, each known and named once."""
    parts = split.split("+")
    for part in parts:
        if part not in known:
            raise unknown("split", part, known)
    if len(set(parts)) < len(parts):
        raise InputError(f"The split '{split}' names a part twice: name each part once.")
    return parts
