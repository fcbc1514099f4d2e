"""Atomic writes (to a temporary file that is flushed and renamed), output folders and file locks."""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmcc.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no fcntl: concurrent processes are not detected there
    fcntl = None  # type: ignore[assignment]

MARK_BYTES = 4096  # at the start of a file, in which `require_own` looks for a mark
Content = bytes | str | Iterable[bytes | memoryview]  # all at once, or in chunks


def write_atomically(path: Path, content: Content, mode: int = 0o644) -> None:
    """Write a file so that a crash at any time leaves either the old file or the new one.

    A private file (mode 0o600) is never readable by other users, not even while it is written.
    """
    write_flushed(path, content, mode)
    flush_folder(path.parent)


def write_flushed(path: Path, content: Content, mode: int = 0o644) -> None:
    """Write a file atomically but do not flush its folder.

    The new name is on disk only after `flush_folder`, which a caller with many files calls once.
    """
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
    """Flush the names of new files to disk, on systems where a folder can be opened."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: Path, purpose: str) -> None:
    """Create a folder and check that it is writable; otherwise raise an InputError with the reason."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unusable(path, purpose, error) from None


def require_possible(path: Path, purpose: str) -> None:
    """Raise an InputError if `make_folder` would, as far as this is known without creating anything."""
    try:
        nearest = next((each for each in (path, *path.parents) if each.exists()), Path())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unusable(path, purpose, error) from None


def _unusable(path: Path, purpose: str, error: OSError) -> InputError:
    reason = error.strerror or "it is not writable"
    return InputError(f"Cannot use {path} for {purpose}: {reason}. Choose another folder.")


def write_output(path: Path, content: Content) -> None:
    """Write an output file that the user requested; on failure raise an InputError with the reason."""
    make_folder(path.parent, path.name)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Choose another name.") from None


def require_own(path: Path | None, marks: Sequence[bytes], force: bool) -> None:
    """Raise InputError if the file exists and has none of the marks of files that fedmcc writes there."""
    if path is None or force or not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(MARK_BYTES)
    if start and not any(mark in start for mark in marks):
        raise InputError(f"{path} exists and was not written by this command: use --force to replace it.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the folder of this file for the current process; a killed process loses its lock."""
    with path.open() as file:
        if not try_lock(file.fileno()):
            raise InputError(f"{path.parent} is in use by another process: wait for it to end, or stop it.")
        yield


def try_lock(file: int) -> bool:
    """Try to lock an open file until it is closed; return False if another process holds the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
