"""Official archives, unpacked once into a folder beside them."""

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
    """A file inside an archive."""

    def read(self, size: int = ..., /) -> bytes:
        """The next `size` bytes."""


def find_or_unpack(archive: Remote, inner: str, mark: str, homes: tuple[Path, ...]) -> Path:
    """The folder with the file `mark`: one of `homes`, `inner` below it, or the archive's content."""
    for folder in (path for home in homes for path in (home / inner, home)):
        if (folder / mark).exists():
            return folder
    present = [home / archive.name for home in homes if (home / archive.name).is_file()]
    return unpack(present[0] if present else fetch(archive, homes[0]), inner)


def unpack(archive: Path, inner: str) -> Path:
    """The archive's files in the folder `inner` beside it, without their own first folder."""

    def fill(folder: Path) -> None:
        try:
            with progress_counter(f"unpacking {archive.name}") as advance:
                for parts, content in _members(archive):
                    _write(folder.joinpath(*parts), content)
                    advance(1)
        except DAMAGED_ARCHIVE_ERRORS as error:
            raise InputError(
                f"{archive} is damaged: {error}. Delete it, and it is downloaded again."
            ) from error

    return create_folder_once(archive.parent / inner, fill)


def _members(archive: Path) -> Iterator[tuple[tuple[str, ...], Readable]]:
    for name, content in _zip(archive) if archive.suffix == ".zip" else _tar(archive):
        parts = PurePosixPath(name).parts
        if ".." in parts:
            raise InputError(f"{archive} holds a file outside its folder, {name}: get the official one.")
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
