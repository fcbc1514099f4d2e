"""STL-10 from its official binary version, memory-mapped."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedmcc.data.archive import find_or_unpack
from fedmcc.data.base import Images, ImageSet, Labels, Source, split_parts
from fedmcc.data.cache import cache_folder, create_folder_once, fingerprint, write_images
from fedmcc.data.download import Remote, search_folders
from fedmcc.errors import InputError

FILES = {"train": "train_X.bin", "test": "test_X.bin", "unlabelled": "unlabeled_X.bin"}
SHAPE = (3, 96, 96)
BLOCK_IMAGES = 1000  # images copied at a time


@dataclass(frozen=True)
class STL10(Source):
    """5,000 + 8,000 photographs of 96 x 96 pixels, 10 classes; 100,000 more without labels."""

    splits: ClassVar[tuple[str, str]] = ("train", "test")
    archive: ClassVar[Remote] = Remote(
        "stl10_binary.tar.gz",
        "md5:91f7769df0f17e558f3565bffb0c7dfb",
        ("http://ai.stanford.edu/~acoates/stl10/",),
    )
    split: Literal[
        "train",
        "test",
        "unlabelled",
        "train+test",
        "train+unlabelled",
        "test+unlabelled",
        "train+test+unlabelled",
    ] = "train"

    def read(self) -> ImageSet:
        """Read the split, memory-mapped; several splits are joined in memory or in the cache."""
        parts = split_parts(self.split, tuple(FILES))
        folder = find_or_unpack(
            self.archive, "stl10_binary", "train_X.bin", search_folders(self.root, "stl10")
        )
        images = [_images(folder / FILES[part]) for part in parts]
        labels = [_labels(folder, part, len(rows)) for part, rows in zip(parts, images, strict=True)]
        names = folder / "class_names.txt"
        classes = tuple(names.read_text().split()) if names.is_file() else ()
        joined = images[0] if len(parts) == 1 else _join(folder, parts, images)
        return ImageSet(joined, np.concatenate(labels), classes, split=self.split)


def _images(path: Path) -> Images:
    length = int(np.prod(SHAPE))
    count = _record_count(path, length)
    stored = np.memmap(path, dtype=np.uint8, mode="r", shape=(count, *SHAPE))
    return stored.transpose(0, 1, 3, 2)  # each colour plane is stored column by column


def _labels(folder: Path, part: str, count: int) -> Labels:
    if part == "unlabelled":
        return np.full(count, -1, dtype=np.int64)
    path = folder / f"{part}_y.bin"
    if _record_count(path, 1) != count:
        raise InputError(f"{path} does not have a label for each of the {count} images. {_remedy(path)}")
    return np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1  # the labels in the file start at 1


def _join(folder: Path, parts: list[str], images: list[np.ndarray]) -> Images:
    if "unlabelled" not in parts:
        return np.concatenate(images)
    key = fingerprint(folder, [FILES[part] for part in parts], "joined")
    blocks = (
        rows[start : start + BLOCK_IMAGES] for rows in images for start in range(0, len(rows), BLOCK_IMAGES)
    )
    target = cache_folder() / "decoded" / key
    create_folder_once(target, lambda partial: write_images(partial / "images.npy", blocks))
    joined: Images = np.load(target / "images.npy", mmap_mode="r", allow_pickle=False)
    return joined


def _record_count(path: Path, length: int) -> int:
    """Number of records of `length` bytes in the file."""
    if not path.is_file():
        raise InputError(f"{path} is missing. {_remedy(path)}")
    count, rest = divmod(path.stat().st_size, length)
    if count == 0 or rest:
        raise InputError(
            f"{path} is truncated: its size is not a multiple of {length} bytes. {_remedy(path)}"
        )
    return count


def _remedy(path: Path) -> str:
    return f"Delete the folder {path.parent} to create it again, or put the official file there."
