"""Official archives, unpacked once into a folder next to the archive."""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from fedmcc.data.cache import create_folder_once
from fedmcc.data.download import Remote, fetch
from fedmcc.data.progress_bar import progress_counter
from fedmcc.errors import InputError

DAMAGED_ARCHIVE_ERRORS = (BadGzipFile, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


@runtime_checkable
class Readable(Protocol):
    """An open file inside an archive."""

    def read(self, size: int = ..., /) -> bytes:
        """Read the next `size` bytes."""


def find_or_unpack(archive: Remote, inner: str, marker: str, folders: tuple[Path, ...]) -> Path:
    """Find the folder that holds the file `marker`, or create it by downloading and unpacking the archive.

    The folder is one of `folders`, or the folder `inner` in one of them.
    """
    for candidate in (path for folder in folders for path in (folder / inner, folder)):
        if (candidate / marker).exists():
            return candidate
    archives = [folder / archive.name for folder in folders if (folder / archive.name).is_file()]
    return unpack(archives[0] if archives else fetch(archive, folders[0]), inner)


def unpack(archive: Path, inner: str) -> Path:
    """Unpack an archive into the folder `inner` next to it, without the archive's top-level folder."""

    def fill(folder: Path) -> None:
        try:
            with progress_counter(f"unpacking {archive.name}") as advance:
                for parts, content in _members(archive):
                    _write(folder.joinpath(*parts), content)
                    advance(1)
        except DAMAGED_ARCHIVE_ERRORS as error:
            raise InputError(f"{archive} is damaged: {error}. Delete it to download it again.") from error

    return create_folder_once(archive.parent / inner, fill)


def _members(archive: Path) -> Iterator[tuple[tuple[str, ...], Readable]]:
    for name, content in _zip(archive) if archive.suffix == ".zip" else _tar(archive):
        parts = PurePosixPath(name).parts
        if ".." in parts:
            raise InputError(
                f"{archive} contains {name}, a path outside its folder: use the official archive."
            )
        yield parts[1:] or parts, content


def _tar(archive: Path) -> Iterator[tuple[str, Readable]]:
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content


def _zip(archive: Path) -> Iterator[tuple[str, Readable]]:
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            if not member.is_dir():
                with bundle.open(member) as content:
                    yield member.filename, content


def _write(path: Path, content: Readable) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file)
