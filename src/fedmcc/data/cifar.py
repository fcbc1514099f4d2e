"""CIFAR-10, CIFAR-100 and CIFAR-20 (the superclasses of CIFAR-100) from the official binary versions."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import UInt8

from fedmcc.data.archive import find_or_unpack
from fedmcc.data.base import ImageSet, Source, split_parts
from fedmcc.data.download import Remote, search_folders
from fedmcc.errors import InputError

IMAGE_BYTES = 3 * 32 * 32  # the red, green and blue planes, each row by row
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)


@dataclass(frozen=True)
class CIFAR10(Source):
    """50,000 + 10,000 photographs of 32 x 32 pixels, 10 classes."""

    splits: ClassVar[tuple[str, str]] = ("train", "test")
    archive: ClassVar[Remote] = Remote(
        "cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", MIRRORS
    )
    inner: ClassVar[str] = "cifar-10-batches-bin"
    files: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    }
    class_file: ClassVar[str] = "batches.meta.txt"
    label_bytes: ClassVar[int] = 1  # number of label bytes before the pixels of each image
    label_byte: ClassVar[int] = 0  # index of the label byte to use
    split: Literal["train", "test", "train+test"] = "train"

    def read(self) -> ImageSet:
        """Read the images and labels of the split."""
        parts = split_parts(self.split, tuple(self.files))
        folders = search_folders(self.root, self.archive.name.removesuffix("-binary.tar.gz"))
        folder = find_or_unpack(self.archive, self.inner, self.files["test"][0], folders)
        length = self.label_bytes + IMAGE_BYTES
        records = np.concatenate(
            [read_records(folder / name, length) for part in parts for name in self.files[part]]
        )
        images = records[:, self.label_bytes :].reshape(-1, 3, 32, 32)
        labels = records[:, self.label_byte].astype(np.int64)
        return ImageSet(np.ascontiguousarray(images), labels, self._classes(folder), split=self.split)

    def _classes(self, folder: Path) -> tuple[str, ...]:
        path = folder / self.class_file
        return tuple(path.read_text().split()) if path.is_file() else ()


@dataclass(frozen=True)
class CIFAR100(CIFAR10):
    """50,000 + 10,000 photographs of 32 x 32 pixels, 100 classes."""

    archive: ClassVar[Remote] = Remote(
        "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", MIRRORS
    )
    inner: ClassVar[str] = "cifar-100-binary"
    files: ClassVar[dict[str, tuple[str, ...]]] = {"train": ("train.bin",), "test": ("test.bin",)}
    class_file: ClassVar[str] = "fine_label_names.txt"
    label_bytes: ClassVar[int] = 2  # first the superclass, then the class
    label_byte: ClassVar[int] = 1


@dataclass(frozen=True)
class CIFAR20(CIFAR100):
    """The images of CIFAR-100, with its 20 superclasses as classes."""

    class_file: ClassVar[str] = "coarse_label_names.txt"
    label_byte: ClassVar[int] = 0


def read_records(path: Path, length: int) -> UInt8[np.ndarray, "n length"]:
    """Read a file of records of `length` bytes each."""
    remedy = f"Delete the folder {path.parent} to create it again, or put the official file there."
    if not path.is_file():
        raise InputError(f"{path} is missing. {remedy}")
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % length:
        raise InputError(f"{path} is truncated: its size is not a multiple of {length} bytes. {remedy}")
    return content.reshape(-1, length)
