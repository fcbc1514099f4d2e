"""Features of a frozen encoder in files of the cache folder: computed once, and continued after a stop."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmcc.data.base import Images
from fedmcc.data.cache import cache_folder
from fedmcc.data.progress_bar import progress_counter
from fedmcc.errors import InputError
from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.inference import device_of
from fedmcc.storage.atomic_files import make_folder, try_lock
from fedmcc.views import Views

VERSION = 1  # increase it when features change, so that older files are not used
BLOCK_IMAGES = 64  # images whose features are computed before they are written
HASHED_IMAGES = 1024  # images in memory while their hash is computed
BYTES_PER_NUMBER = 4
POLL_SECONDS = 0.2  # between two attempts to get the lock

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """Features of images in a file, one row of float32 each, read when they are needed."""

    path: Path
    count: int  # rows in the file
    width: int
    rows: Rows | None = None  # the rows of one client; None: all

    def __len__(self) -> int:
        return self.count if self.rows is None else len(self.rows)

    def read(self, rows: Rows) -> Float[Tensor, "n d"]:
        """The features of these images."""
        return torch.from_numpy(np.array(self._mapped()[rows if self.rows is None else self.rows[rows]]))

    def array(self) -> Float32[np.ndarray, "n d"]:
        """The features of all images, mapped from the file; changes stay in memory."""
        return self._mapped() if self.rows is None else self._mapped()[self.rows]

    def take(self, rows: Rows) -> "FeatureFile":
        """The features of some images."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def _mapped(self) -> Float32[np.ndarray, "n d"]:
        return np.memmap(self.path, np.float32, "c", shape=(self.count, self.width))


def feature_file(encoder: nn.Module, images: Images, views: Views) -> FeatureFile | None:
    """The features of all images without augmentation; None if the encoder can change.

    A file is named by a hash of the encoder, the images and the preprocessing. What is missing of it, for
    instance after the process was killed, is computed block by block.
    """
    if not isinstance(encoder, FrozenEncoder) or not len(images):
        return None
    folder = cache_folder() / "features"
    make_folder(folder, "features")
    path = folder / f"{_key(encoder, images, views)}.f32"
    file = FeatureFile(path, len(images), encoder.features)
    with _exclusive(path.with_suffix(".lock")):
        _complete(file, encoder, images, views)
    return file


def _key(encoder: FrozenEncoder, images: Images, views: Views) -> str:
    digest = sha256()
    for start in range(0, len(images), HASHED_IMAGES):
        digest.update(np.ascontiguousarray(images[start : start + HASHED_IMAGES]).data)
    facts = [VERSION, *encoder.facts(), views.size, list(images.shape), digest.hexdigest()]
    return sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _complete(file: FeatureFile, encoder: FrozenEncoder, images: Images, views: Views) -> None:
    """Append the missing rows to the file; a row that was not written completely is computed again."""
    handle = os.open(file.path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "rb+") as out:
        row = BYTES_PER_NUMBER * file.width
        done = min(os.fstat(handle).st_size // row, file.count)
        if done == file.count:
            return
        out.truncate(done * row)
        out.seek(done * row)
        with progress_counter("computing features", file.count) as advance:
            advance(done)
            for start in range(done, file.count, BLOCK_IMAGES):
                rows = slice(start, min(start + BLOCK_IMAGES, file.count))
                out.write(_encode(encoder, images[rows], views).tobytes())
                out.flush()
                os.fsync(handle)
                advance(rows.stop - start)


@torch.inference_mode()
def _encode(encoder: FrozenEncoder, images: Images, views: Views) -> Float32[np.ndarray, "n d"]:
    pixels = torch.from_numpy(np.array(images)).to(device_of(encoder))  # copied: it may be read-only
    features = encoder(views.plain(pixels)).cpu().numpy()
    if not np.isfinite(features).all():
        raise InputError("The encoder's features are not finite: check its files, mean and std.")
    return features  # type: ignore[no-any-return]


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock; another process that computes the same features is waited for."""
    with path.open("w") as file:
        while not try_lock(file.fileno()):
            time.sleep(POLL_SECONDS)
        yield
