"""Data sets of image files, decoded once into a memory-mapped cache."""

import json
import os
import shutil
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedmcc.data.base import Images, ImageSet, Source
from fedmcc.data.cache import cache_folder, create_folder_once, fingerprint, write_images
from fedmcc.data.decode import DecodedImage, HeightWidth, decode, is_grey, reason
from fedmcc.data.formats import readers_of
from fedmcc.data.progress_bar import progress_counter
from fedmcc.errors import InputError

BLOCK_IMAGES = 128  # images in memory before they are written
CACHE_VERSION = 1  # increase it when decoding changes, so that older caches are not used


@dataclass(frozen=True)
class Listing:
    """Files to decode, with their labels and groups if known."""

    root: Path
    names: tuple[str, ...]  # relative to root, with slashes
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    split: str = "train"
    groups: tuple[int, ...] | None = None
    owners: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # folders that cannot be listed, each with the reason

    def spread(self, limit: int | None) -> "Listing":
        """Select at most `limit` files, evenly spread over the list, since files are sorted by class."""
        if limit is None or limit >= len(self.names):
            return self
        rows = np.linspace(0, len(self.names) - 1, limit).round().astype(int)
        names = tuple(self.names[row] for row in rows)
        labels = None if self.labels is None else tuple(self.labels[row] for row in rows)
        groups = None if self.groups is None else tuple(self.groups[row] for row in rows)
        return replace(self, names=names, labels=labels, groups=groups)


@dataclass(frozen=True)
class ImageFiles(Source):
    """A data set of image files; a subclass adds `listing`.

    `limit` counts files, evenly spread over the list; unreadable files among them are skipped.
    """

    size: int = 96  # pixels: the shorter side is scaled to it, then the centre is cropped
    channels: Literal["auto", 1, 3] = "auto"  # auto: 1 if all files are greyscale

    def read(self) -> ImageSet:
        """Read the listed files, from the cache if they were decoded before."""
        if self.size < 1:
            raise InputError(f"data.size is {self.size}: give 1 pixel or more.")
        return decode_files(self.listing().spread(self.limit), (self.size, self.size), self.channels)

    @abstractmethod
    def listing(self) -> Listing:
        """List the files of the data set."""


def decode_files(listing: Listing, shape: HeightWidth, channels: Literal["auto", 1, 3]) -> ImageSet:
    """Decode the listed files, or open them from the cache folder if they were decoded before."""
    readers = readers_of(listing.names)  # () for files that Pillow reads
    key = fingerprint(listing.root, listing.names, shape, channels, CACHE_VERSION, *readers)
    folder = cache_folder() / "decoded" / key
    try:
        return _open(listing, folder)
    except (OSError, ValueError, KeyError):  # not decoded yet, or the cache is damaged
        shutil.rmtree(folder, ignore_errors=True)
    create_folder_once(folder, lambda partial: _decode_all(listing, shape, channels, partial))
    return _open(listing, folder)


def _open(listing: Listing, folder: Path) -> ImageSet:
    skipped = json.loads((folder / "skipped.json").read_text())
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    readable = [row for row, name in enumerate(listing.names) if name not in skipped]
    if len(readable) != len(images):
        raise ValueError("the cache does not match the files")
    labels, groups = (
        None if numbers is None else np.array(numbers, dtype=np.int64)[readable]
        for numbers in (listing.labels, listing.groups)
    )
    names = [listing.names[row] for row in readable]
    reports = (*listing.unread, *(f"{name}: {why}" for name, why in skipped.items()))
    labelled = ImageSet(images, labels, listing.classes, names, listing.split, reports)
    return replace(labelled, groups=groups, owners=listing.owners)


def _decode_all(listing: Listing, shape: HeightWidth, channels: Literal["auto", 1, 3], folder: Path) -> None:
    skipped: dict[str, str] = {}
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # Pillow warns about unusual files; failures are reported below
        count = _channels(listing, pool) if channels == "auto" else channels
        write_images(folder / "images.npy", _blocks(listing, (shape, count), pool, skipped))
    if len(skipped) == len(listing.names):
        raise nothing_readable(listing, skipped)
    (folder / "skipped.json").write_text(json.dumps(skipped))


def nothing_readable(listing: Listing, skipped: Mapping[str, str]) -> InputError:
    """The error for a folder of which every file was skipped."""
    if len(listing.names) == 1:
        ((name, why),) = skipped.items()
        return InputError(
            f"{listing.root / name} is not a readable image ({why}): give images, or a folder of them."
        )
    named = "; ".join(f"{name}: {why}" for name, why in list(skipped.items())[:3])
    return InputError(
        f"No readable image in {listing.root}, {len(skipped)} files skipped ({named}): "
        "give a folder with images."
    )


def _channels(listing: Listing, pool: ThreadPoolExecutor) -> int:
    for start in range(0, len(listing.names), BLOCK_IMAGES):
        paths = [listing.root / name for name in listing.names[start : start + BLOCK_IMAGES]]
        if any(grey is False for grey in pool.map(is_grey, paths)):
            return 3
    return 1


def _blocks(
    listing: Listing, target: tuple[HeightWidth, int], pool: ThreadPoolExecutor, skipped: dict[str, str]
) -> Iterator[Images]:
    """Decode the images block by block and add unreadable files with their reasons to `skipped`."""
    with progress_counter("decoding images", len(listing.names)) as advance:
        for start in range(0, len(listing.names), BLOCK_IMAGES):
            names = listing.names[start : start + BLOCK_IMAGES]
            images = decode_block(listing.root, names, target, pool)
            skipped |= {name: why for name, why in zip(names, images, strict=True) if isinstance(why, str)}
            readable = [image for image in images if not isinstance(image, str)]
            if readable:
                yield np.stack(readable)
            advance(len(names))


def decode_block(
    root: Path, names: Sequence[str], target: tuple[HeightWidth, int], pool: ThreadPoolExecutor
) -> list[DecodedImage | str]:
    """Decode a few files; the reason instead of an image for each that cannot be read."""

    def attempt(name: str) -> DecodedImage | str:
        try:
            return decode(root / name, *target)
        except Exception as error:  # a decoder may raise any exception on a damaged file
            return reason(error, root / name)

    return list(pool.map(attempt, names))
