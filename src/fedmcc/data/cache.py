"""The cache folder: files that are created once, atomically, and memory-mapped afterwards."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from fedmcc.errors import InputError

MIN_FLUSH_BYTES = 1 << 20  # smaller files are not flushed: 100,000 of them would take minutes


def cache_folder() -> Path:
    """Folder for downloads and decoded images: FEDMCC_DATA if set, otherwise the user's cache folder."""
    if chosen := os.environ.get("FEDMCC_DATA"):
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("fedmcc"))


def fingerprint(root: Path, names: Iterable[str], *options: object) -> str:
    """Compute a key from the options and the path, size, modification time and readability of every file."""
    digest = hashlib.sha256(json.dumps([str(root.resolve()), [repr(option) for option in options]]).encode())
    for name in names:
        try:
            status = (root / name).stat()
            facts = (status.st_size, status.st_mtime_ns)
        except OSError:  # such as a broken link
            facts = (-1, -1)
        if not os.access(root / name, os.R_OK):
            facts = (-1, -1)
        digest.update(json.dumps([name, *facts]).encode())
    return digest.hexdigest()[:24]


def create_folder_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """Create the folder `target` with `fill` unless it exists; an interruption leaves nothing behind."""
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
            "Set FEDMCC_DATA (or data.root) to a writable folder with enough free space."
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
        if not target.exists():  # otherwise another process created it first, with the same content
            raise


def write_images(path: Path, blocks: Iterable[np.ndarray]) -> None:
    """Write blocks of images to one .npy file, with only one block in memory at a time."""
    with path.open("wb") as file:
        count, shape = 0, (0, 0, 0)
        for block in blocks:
            if count == 0:
                shape = block.shape[1:]
                _write_header(file, (0, *shape))
            file.write(np.ascontiguousarray(block).data)
            count += len(block)
        file.seek(0)
        _write_header(file, (count, *shape))  # NumPy pads the header, so a larger count fits
        file.flush()
        os.fsync(file.fileno())


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
