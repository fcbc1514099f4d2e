"""A look at a folder of images before training: sizes, colour and near-duplicates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float32

from fedmcc.data.base import Images, ImageSet
from fedmcc.data.decode import DecodedImage, decode
from fedmcc.data.formats import HEIC, RAW, sides_of

MAX_OPENED = 500  # files whose size is read, evenly spread
MAX_LOOKED_AT = 24  # files that are decoded to tell photographs from other images, evenly spread
NATURAL_SIDE = 64  # pixels: smaller images are icons or symbols, unless they are in a format of cameras
OF_CAMERAS = (".jpg", ".jpeg", *HEIC.suffixes, *RAW.suffixes)
COLOURED = 8.0  # mean difference of an image's channels, of 255: near 0 if grey, near 30 in photographs
FLAT_SHARE = 0.5  # of pixels that equal the next one: few in photographs, most in drawings
MAX_COMPARED = 20_000  # images among which near-duplicates are searched; more take minutes
THUMBNAIL = 8  # pixels of a side
MAX_DIFFERENCE = 4.0  # root mean square of the difference of two thumbnails, of 255
MAX_RELATIVE = 0.4  # the same, relative to their contrast: images without contrast are all alike otherwise
ROUNDING = 0.5  # a difference that rounding explains, of 255
BLOCK = 512

Sides = tuple[int, int]  # width and height
Read = TypeVar("Read")


@dataclass(frozen=True)
class Survey:
    """What was found in a folder."""

    images: int
    smallest: Sides
    median: Sides
    largest: Sides
    grey: bool
    duplicates: tuple[tuple[int, ...], ...] | None  # rows of images that look the same; None: not searched


def survey(images: ImageSet, sides: Sequence[Sides]) -> Survey:
    """Describe decoded images whose files have these sides."""
    by_area = sorted(sides, key=lambda side: side[0] * side[1]) or [images.images.shape[:1:-1]]
    compared = len(images) <= MAX_COMPARED
    return Survey(
        images=len(images),
        smallest=by_area[0],
        median=by_area[len(by_area) // 2],
        largest=by_area[-1],
        grey=images.images.shape[1] == 1,
        duplicates=tuple(near_duplicates(images.images)) if compared else None,
    )


def file_sides(root: Path, names: Sequence[str]) -> list[Sides]:
    """Width and height of image files, of many an evenly spread selection; unreadable ones are left out."""
    return _readable(sides_of, [root / name for name in _spread(names, MAX_OPENED)])


def are_photographs(root: Path, names: Sequence[str], sides: Sequence[Sides]) -> bool:
    """Whether most of these image files are photographs in colour, and neither grey, drawn nor tiny."""
    looked_at = _spread(names, MAX_LOOKED_AT)
    of_cameras = [name.lower().endswith(OF_CAMERAS) for name in looked_at]
    side = int(np.median([min(pair) for pair in sides])) if sides else 0
    if side < NATURAL_SIDE and np.mean(of_cameras) < 0.5:
        return False
    shape = (min(side, NATURAL_SIDE),) * 2
    images = _readable(lambda path: decode(path, shape, 3), [root / name for name in looked_at])
    return bool(images) and float(np.mean([_is_photograph(image) for image in images])) > 0.5


def _is_photograph(image: DecodedImage) -> bool:
    coloured = (image.max(axis=0) - image.min(axis=0)).mean() > COLOURED
    flat = (image[:, :, 1:] == image[:, :, :-1]).all(axis=0).mean()
    return bool(coloured and flat < FLAT_SHARE)


def _spread(names: Sequence[str], count: int) -> list[str]:
    rows = np.linspace(0, len(names) - 1, min(len(names), count)).round().astype(int)
    return [names[row] for row in rows]


def _readable(read: Callable[[Path], Read], paths: Sequence[Path]) -> list[Read]:
    """What is read from each file; files that cannot be read are left out."""
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except Exception:  # a decoder may raise any exception; the file is reported when it is decoded
            continue
    return found


def near_duplicates(images: Images) -> list[tuple[int, ...]]:
    """Groups of two or more images that look the same in small: copies, other sizes, light compression."""
    thumbnails = _thumbnails(images)
    lengths = np.square(thumbnails).sum(axis=1)
    pixels = thumbnails.shape[1]
    limits = np.clip(MAX_RELATIVE**2 * lengths, ROUNDING**2 * pixels, MAX_DIFFERENCE**2 * pixels)
    first = np.arange(len(images))  # of the group of each image
    for start in range(0, len(images), BLOCK):
        rows = slice(start, start + BLOCK)
        squared = lengths[rows, None] + lengths - 2 * thumbnails[rows] @ thumbnails.T
        for row, other in zip(*np.nonzero(squared <= np.minimum(limits[rows, None], limits)), strict=True):
            if other < start + row:
                first[start + row] = min(first[start + row], first[other])
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(first.tolist()):
        groups.setdefault(group, []).append(row)
    return [tuple(rows) for rows in groups.values() if len(rows) > 1]


def _thumbnails(images: Images) -> Float32[np.ndarray, "n d"]:
    """Grey thumbnails as rows, each with mean 0, so that brightness alone makes no difference."""
    height, width = images.shape[2:]
    down, across = (np.linspace(0, side, min(THUMBNAIL, side) + 1).astype(int) for side in (height, width))
    parts = []
    for start in range(0, len(images), BLOCK):
        grey = np.asarray(images[start : start + BLOCK], dtype=np.float32).mean(axis=1)
        sums = np.add.reduceat(np.add.reduceat(grey, down[:-1], axis=1), across[:-1], axis=2)
        parts.append((sums / np.outer(np.diff(down), np.diff(across))).reshape(len(grey), -1))
    rows = np.concatenate(parts).astype(np.float64)
    return np.asarray(rows - rows.mean(axis=1, keepdims=True), dtype=np.float32)
