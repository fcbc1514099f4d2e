"""Files that are either whole or absent: written to a temporary name, flushed and renamed."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmcc.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows, where two processes at one thing are not noticed
    fcntl = None  # type: ignore[assignment]

Content = bytes | str | Iterable[bytes | memoryview]  # whole, or piece by piece


def write_atomically(path: Path, content: Content, mode: int = 0o644) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    A private file, of mode 0o600, is at no moment readable for others.
    """
    write_flushed(path, content, mode)
    flush_folder(path.parent)


def write_flushed(path: Path, content: Content, mode: int = 0o644) -> None:
    """The same of the file alone: its name is on disk once the folder is flushed, for many files at once."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def flush_folder(path: Path) -> None:
    """See new names on disk too; not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: Path, purpose: str) -> None:
    """Make a folder that can be written to, or say in a sentence why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise InputError(f"Cannot use {path} for {purpose}: {reason}. Choose another folder.") from None


def write_output(path: Path, content: bytes | str) -> None:
    """Write a file that a person asked for, or say in a sentence why it cannot be written."""
    make_folder(path.parent, path.name)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Choose another name.") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Work in the folder of this file while no other process does; a killed one lets go of it."""
    with path.open() as file:
        if not try_lock(file.fileno()):
            raise InputError(f"{path.parent} is in use by another process: wait for it, or stop it.")
        yield


def try_lock(file: int) -> bool:
    """Have an open file for this process alone until it is closed; False while another has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
