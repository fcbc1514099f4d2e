"""MNIST, Fashion-MNIST and KMNIST from their official idx files, compressed with gzip or not."""

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
IDX_UINT8 = 8  # type code in the third byte of an idx file


@dataclass(frozen=True)
class MNIST(Source):
    """60,000 + 10,000 handwritten digits of 28 x 28 pixels."""

    splits: ClassVar[tuple[str, str]] = ("train", "test")
    views: ClassVar[str] = "digits"
    name: ClassVar[str] = "mnist"
    torchvision: ClassVar[str] = "MNIST/raw"  # where torchvision stores the same files
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
        """Read the images and labels of the split."""
        parts = [FILE_PREFIXES[part] for part in split_parts(self.split, tuple(FILE_PREFIXES))]
        images = [read_idx(self._file(f"{part}-images-idx3-ubyte"), 3) for part in parts]
        labels = [read_idx(self._file(f"{part}-labels-idx1-ubyte"), 1) for part in parts]
        for part, pixels, numbers in zip(parts, images, labels, strict=True):
            if len(pixels) != len(numbers):
                raise InputError(
                    f"{part}: {len(pixels)} images but {len(numbers)} labels. Download both files again."
                )
        pixels, numbers = np.concatenate(images)[:, None], np.concatenate(labels).astype(np.int64)
        return ImageSet(pixels, numbers, self.classes, split=self.split)

    def _file(self, stem: str) -> Path:
        folders = search_folders(self.root, self.name)
        for folder in (*folders, folders[0] / self.torchvision):
            for name in (stem, f"{stem}.gz", stem.replace("-idx", ".idx")):
                if (folder / name).is_file():
                    return folder / name
        name = f"{stem}.gz"
        return fetch(Remote(name, self.checksums[name], self.mirrors), folders[0])


@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """60,000 + 10,000 images of clothing of 28 x 28 pixels."""

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


@dataclass(frozen=True)
class KMNIST(MNIST):
    """60,000 + 10,000 handwritten Japanese characters of 28 x 28 pixels, 10 classes."""

    name: ClassVar[str] = "kmnist"
    torchvision: ClassVar[str] = "KMNIST/raw"
    classes: ClassVar[tuple[str, ...]] = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    mirrors: ClassVar[tuple[str, ...]] = ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",)
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "md5:bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "md5:e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "md5:7320c461ea6c1c855c0b718fb2a4b134",
    }


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes: a header of big-endian sizes, then the values."""
    remedy = "Delete it to download it again, or replace it with the official file."
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
        raise InputError(f"{path} does not have the size that its header gives. {remedy}")
    return values.reshape(shape)
