"""The user's own images: a folder tree of image files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedmcc.data.formats import named_as_image
from fedmcc.data.image_files import ImageFiles, Listing
from fedmcc.errors import InputError

Names = tuple[str, ...]


@dataclass(frozen=True)
class Folder(ImageFiles):
    """Image files below the folder `root`; its subfolders can be classes or owners."""

    labels: Literal["auto", True, False] = "auto"  # auto: True if all files are in two or more class folders
    groups: bool = False  # True: the subfolders of root are owners, and class folders are inside them

    def listing(self) -> Listing:
        """List all files except hidden ones, sorted by path."""
        root = _existing(self.root)
        unread: list[str] = []
        names = tuple(sorted(_files(root, unread)))
        if not names and unread:
            raise InputError(f"The folder {root} cannot be read ({unread[0]}): make it readable.")
        if not names:
            raise InputError(
                f"The folder {root} is empty: put images in it, or set data.root to another folder."
            )
        listing = Listing(root, names, split="all", unread=tuple(sorted(unread)))
        if self.groups:
            groups, owners = self._owners(root, names)
            listing = replace(listing, groups=groups, owners=owners)
        classes = self._classes(root, names)
        labels = _numbered(names, classes, int(self.groups)) if classes else None
        return replace(listing, labels=labels, classes=classes)

    def _owners(self, root: Path, names: Names) -> tuple[tuple[int, ...], Names]:
        if loose := _loose(names, 0):
            raise InputError(
                f"{root / loose[0]} is not in an owner's folder: move it, or do not take owners from folders "
                "(data.groups)."
            )
        owners = _folders(names, 0)
        return _numbered(names, owners, 0), owners

    def _classes(self, root: Path, names: Names) -> Names:
        depth = int(self.groups)
        loose, folders = _loose(names, depth), _folders(names, depth)
        if self.labels is True and loose:
            raise InputError(
                f"{root / loose[0]} is not in a class folder: move it, or do not take labels from folders "
                "(data.labels)."
            )
        labelled = self.labels is True or (self.labels == "auto" and not loose and len(folders) > 1)
        return folders if labelled else ()


def _folder(name: str, depth: int) -> str | None:
    """The folder at this depth in the path of a file; None if the path is shorter."""
    folders = name.split("/")[:-1]
    return folders[depth] if len(folders) > depth else None


def _folders(names: Names, depth: int) -> Names:
    return tuple(sorted({folder for name in names if (folder := _folder(name, depth)) is not None}))


def _numbered(names: Names, folders: Names, depth: int) -> tuple[int, ...]:
    """For each file the index of its folder in `folders`; -1 if it is in none of them."""
    number = {folder: index for index, folder in enumerate(folders)}
    return tuple(number.get(_folder(name, depth) or "", -1) for name in names)


def _loose(names: Names, depth: int) -> list[str]:
    return [name for name in names if _folder(name, depth) is None and named_as_image(name)]


def _existing(root: Path | None) -> Path:
    if root is None:
        raise InputError("The data set 'folder' needs data.root: set it to the folder of your images.")
    root = root.expanduser()
    if root.is_file():
        raise InputError(f"{root} is a file: give the folder that holds your images.")
    if not root.is_dir():
        raise InputError(
            f"There is no folder {root}: give the folder of your images, as data.root in a recipe."
        )
    return root


def _files(root: Path, unread: list[str]) -> Iterator[str]:
    """The files below a folder; folders that cannot be listed are added to `unread`, with the reason."""

    def report(error: OSError) -> None:
        unread.append(f"folder {os.path.relpath(error.filename, root)}: {error.strerror}")

    visited: set[Path] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=report):
        here = Path(folder)
        if here.resolve() in visited:  # a link to a folder that was visited before
            folders.clear()
            continue
        visited.add(here.resolve())
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = here / name
            # Reading a pipe or a device would block; a broken link is listed, so that it is reported.
            if not name.startswith(".") and (path.is_file() or not path.exists()):
                yield path.relative_to(root).as_posix()
