"""The cache folder: files that are made once, whole or not at all, and mapped into memory after."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from fedmcc.errors import InputError

MIN_FLUSH_BYTES = 1 << 20  # bytes; flushing 100,000 small files one by one would take minutes


def cache_folder() -> Path:
    """Where downloads and decoded images are kept: FEDMCC_DATA, or the user's cache folder."""
    if chosen := os.environ.get("FEDMCC_DATA"):
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("fedmcc"))


def fingerprint(root: Path, names: Iterable[str], *options: object) -> str:
    """A key that changes with any file's path, size or time of change, and with the options."""
    digest = hashlib.sha256(json.dumps([str(root.resolve()), [repr(option) for option in options]]).encode())
    for name in names:
        try:
            state = (root / name).stat()
            facts = (state.st_size, state.st_mtime_ns)
        except OSError:  # a broken link, say
            facts = (-1, -1)
        digest.update(json.dumps([name, *facts]).encode())
    return digest.hexdigest()[:24]


def create_folder_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """The folder `target`, filled by `fill` if it is not there yet; an interruption leaves nothing."""
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            partial = Path(scratch) / target.name
            partial.mkdir()
            fill(partial)
            _flush(partial)
            _rename(partial, target)
    except OSError as error:
        raise InputError(
            f"Could not write {target}: {error.strerror or error}. "
            "Set FEDMCC_DATA (or data.root) to a folder that you can write and that has room."
        ) from error
    return target


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > MIN_FLUSH_BYTES:
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def _rename(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.exists():  # otherwise another process was faster, with the same content
            raise


def write_images(path: Path, blocks: Iterable[np.ndarray]) -> None:
    """Blocks of images as one .npy file, of which only one block is ever in memory."""
    with path.open("wb") as file:
        count, shape = 0, (0, 0, 0)
        for block in blocks:
            if count == 0:
                shape = block.shape[1:]
                _write_header(file, (0, *shape))
            file.write(np.ascontiguousarray(block).data)
            count += len(block)
        file.seek(0)
        _write_header(file, (count, *shape))  # numpy pads the header so that the count may grow
        file.flush()
        os.fsync(file.fileno())


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
