"""Image files, decoded once into a memory-mapped cache."""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedmcc.data.base import Images, ImageSet, Source
from fedmcc.data.cache import cache_folder, create_folder_once, fingerprint, write_images
from fedmcc.data.decode import DecodedImage, HeightWidth, decode, is_grey, reason
from fedmcc.data.progress_bar import progress_counter
from fedmcc.errors import InputError

BLOCK_IMAGES = 128  # images decoded before they are written: the bound on memory
CACHE_VERSION = 1  # raised when decoding changes, so that older caches are not used


@dataclass(frozen=True)
class Listing:
    """Which files to decode, with what is known about each."""

    root: Path
    names: tuple[str, ...]  # relative to root, with slashes
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    split: str = "train"
    groups: tuple[int, ...] | None = None
    owners: tuple[str, ...] = ()

    def spread(self, limit: int | None) -> "Listing":
        """At most `limit` files, evenly spread, since files are sorted by class."""
        if limit is None or limit >= len(self.names):
            return self
        rows = np.linspace(0, len(self.names) - 1, limit).round().astype(int)
        names = tuple(self.names[row] for row in rows)
        labels = None if self.labels is None else tuple(self.labels[row] for row in rows)
        groups = None if self.groups is None else tuple(self.groups[row] for row in rows)
        return replace(self, names=names, labels=labels, groups=groups)


@dataclass(frozen=True)
class ImageFiles(Source):
    """A source whose images are files to decode; an entry adds `listing`."""

    size: int = 96  # pixels: the shorter side is scaled to it, the centre cut out
    channels: Literal["auto", 1, 3] = "auto"  # auto: 1 if every file is grey

    def read(self) -> ImageSet:
        """The listed files, decoded now or on an earlier day."""
        if self.size < 1:
            raise InputError(f"data.size is {self.size}: give a number of pixels of 1 or more.")
        return decode_files(self.listing().spread(self.limit), (self.size, self.size), self.channels)

    def listing(self) -> Listing:
        """The files of the set."""
        raise NotImplementedError


def decode_files(listing: Listing, sides: HeightWidth, channels: Literal["auto", 1, 3]) -> ImageSet:
    """The images of the listed files; a cache in the cache folder holds them."""
    key = fingerprint(listing.root, listing.names, sides, channels, CACHE_VERSION)
    folder = cache_folder() / "decoded" / key
    try:
        return _open(listing, folder)
    except (OSError, ValueError, KeyError):  # not decoded yet, or damaged since
        shutil.rmtree(folder, ignore_errors=True)
    create_folder_once(folder, lambda partial: _decode_all(listing, sides, channels, partial))
    return _open(listing, folder)


def _open(listing: Listing, folder: Path) -> ImageSet:
    skipped = json.loads((folder / "skipped.json").read_text())
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    kept = [row for row, name in enumerate(listing.names) if name not in skipped]
    if len(kept) != len(images):
        raise ValueError("the cache is not of these files")
    labels, groups = (
        None if known is None else np.array(known, dtype=np.int64)[kept]
        for known in (listing.labels, listing.groups)
    )
    names = [listing.names[row] for row in kept]
    reports = tuple(f"{name}: {why}" for name, why in skipped.items())
    known = ImageSet(images, labels, listing.classes, names, listing.split, reports)
    return replace(known, groups=groups, owners=listing.owners)


def _decode_all(listing: Listing, sides: HeightWidth, channels: Literal["auto", 1, 3], folder: Path) -> None:
    skipped: dict[str, str] = {}
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # Pillow's remarks on odd files; what fails is reported
        depth = _channels(listing, pool) if channels == "auto" else channels
        write_images(folder / "images.npy", _blocks(listing, (sides, depth), pool, skipped))
    if len(skipped) == len(listing.names):
        named = "; ".join(f"{name}: {why}" for name, why in list(skipped.items())[:3])
        raise InputError(f"No readable image among the {len(skipped)} files in {listing.root} ({named}).")
    (folder / "skipped.json").write_text(json.dumps(skipped))


def _channels(listing: Listing, pool: ThreadPoolExecutor) -> int:
    for start in range(0, len(listing.names), BLOCK_IMAGES):
        paths = [listing.root / name for name in listing.names[start : start + BLOCK_IMAGES]]
        if any(grey is False for grey in pool.map(is_grey, paths)):
            return 3
    return 1


def _blocks(
    listing: Listing, shape: tuple[HeightWidth, int], pool: ThreadPoolExecutor, skipped: dict[str, str]
) -> Iterator[Images]:
    """Decoded images, block by block; files that are none are entered in `skipped`."""

    def attempt(name: str) -> DecodedImage | str:
        try:
            return decode(listing.root / name, *shape)
        except Exception as error:  # whatever a damaged file makes a format's reader raise
            return reason(error)

    with progress_counter("decoding images", len(listing.names)) as advance:
        for start in range(0, len(listing.names), BLOCK_IMAGES):
            names = listing.names[start : start + BLOCK_IMAGES]
            results = list(pool.map(attempt, names))
            skipped |= {name: why for name, why in zip(names, results, strict=True) if isinstance(why, str)}
            pictures = [picture for picture in results if not isinstance(picture, str)]
            if pictures:
                yield np.stack(pictures)
            advance(len(names))
