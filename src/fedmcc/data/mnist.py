"""MNIST and Fashion-MNIST from their official idx files, packed with gzip or plain."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedmcc.data.base import ImageSet, Source, split_parts
from fedmcc.data.download import Remote, fetch, search_folders
from fedmcc.errors import InputError

FILE_PREFIXES = {"train": "train", "test": "t10k"}
IDX_UINT8 = 8  # the third byte of an idx file says the type


@dataclass(frozen=True)
class MNIST(Source):
    """60,000 + 10,000 handwritten digits of 28 x 28 pixels."""

    splits: ClassVar[tuple[str, str]] = ("train", "test")
    views: ClassVar[str] = "digits"
    name: ClassVar[str] = "mnist"
    torchvision: ClassVar[str] = "MNIST/raw"  # where that library keeps the same files
    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    }
    split: Literal["train", "test", "train+test"] = "train"

    def read(self) -> ImageSet:
        """The split's images with their labels."""
        parts = [FILE_PREFIXES[part] for part in split_parts(self.split, tuple(FILE_PREFIXES))]
        images = [read_idx(self._file(f"{part}-images-idx3-ubyte"), 3) for part in parts]
        labels = [read_idx(self._file(f"{part}-labels-idx1-ubyte"), 1) for part in parts]
        for part, pixels, numbers in zip(parts, images, labels, strict=True):
            if len(pixels) != len(numbers):
                raise InputError(
                    f"{part}: {len(pixels)} images but {len(numbers)} labels. Get both files anew."
                )
        pixels, numbers = np.concatenate(images)[:, None], np.concatenate(labels).astype(np.int64)
        return ImageSet(pixels, numbers, self.classes, split=self.split)

    def _file(self, stem: str) -> Path:
        homes = search_folders(self.root, self.name)
        for home in (*homes, homes[0] / self.torchvision):
            for name in (stem, f"{stem}.gz", stem.replace("-idx", ".idx")):
                if (home / name).is_file():
                    return home / name
        name = f"{stem}.gz"
        return fetch(Remote(name, self.checksums[name], self.mirrors), homes[0])


@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """60,000 + 10,000 pieces of clothing of 28 x 28 pixels."""

    views: ClassVar[str] = "fashion"
    name: ClassVar[str] = "fashion-mnist"
    torchvision: ClassVar[str] = "FashionMNIST/raw"
    classes: ClassVar[tuple[str, ...]] = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )
    mirrors: ClassVar[tuple[str, ...]] = (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    )
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    }


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The array of bytes in an idx file: a big-endian header of sizes, then the values."""
    remedy = "Delete it and it is downloaded again, or put the official file in its place."
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}. {remedy}") from error
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, IDX_UINT8, dimensions)):
        raise InputError(f"{path} is not an idx file of {dimensions} dimensions. {remedy}")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    values = np.frombuffer(content[start:], dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise InputError(f"{path} is cut short or too long for its header. {remedy}")
    return values.reshape(shape)
