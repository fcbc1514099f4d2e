"""Any tree of images: yours."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedmcc.data.image_files import ImageFiles, Listing
from fedmcc.errors import InputError

Names = tuple[str, ...]


@dataclass(frozen=True)
class Folder(ImageFiles):
    """The images below `root`; the folders directly in it may be their classes, or their owners."""

    labels: Literal["auto", True, False] = "auto"  # auto: yes if all lie in two or more class folders
    groups: bool = False  # the folders directly in root are owners, the class folders lie in those

    def listing(self) -> Listing:
        """All files but hidden ones, sorted by path."""
        root = _existing(self.root)
        names = tuple(sorted(_files(root)))
        if not names:
            raise InputError(f"The folder {root} is empty: put images in it, or give another data.root.")
        listing = Listing(root, names, split="all")
        if self.groups:
            groups, owners = self._owners(root, names)
            listing = replace(listing, groups=groups, owners=owners)
        classes = self._classes(root, names)
        labels = _numbered(names, classes, int(self.groups)) if classes else None
        return replace(listing, labels=labels, classes=classes)

    def _owners(self, root: Path, names: Names) -> tuple[tuple[int, ...], Names]:
        if loose := _loose(names, 0):
            raise InputError(
                f"{root / loose[0]} lies in no owner's folder: move it, or set data.groups to false."
            )
        owners = _folders(names, 0)
        return _numbered(names, owners, 0), owners

    def _classes(self, root: Path, names: Names) -> Names:
        depth = int(self.groups)
        loose, folders = _loose(names, depth), _folders(names, depth)
        if self.labels is True and loose:
            raise InputError(
                f"{root / loose[0]} lies in no class folder: move it, or set data.labels to false."
            )
        wanted = self.labels is True or (self.labels == "auto" and not loose and len(folders) > 1)
        return folders if wanted else ()


def _folder(name: str, depth: int) -> str | None:
    """The folder that a file lies in, so many levels below the root; None: it lies above."""
    folders = name.split("/")[:-1]
    return folders[depth] if len(folders) > depth else None


def _folders(names: Names, depth: int) -> Names:
    return tuple(sorted({folder for name in names if (folder := _folder(name, depth)) is not None}))


def _numbered(names: Names, folders: Names, depth: int) -> tuple[int, ...]:
    """For each file the place of its folder; -1: it lies in none."""
    number = {folder: place for place, folder in enumerate(folders)}
    return tuple(number.get(_folder(name, depth) or "", -1) for name in names)


def _loose(names: Names, depth: int) -> list[str]:
    return [name for name in names if _folder(name, depth) is None and _named_as_image(name)]


def _named_as_image(name: str) -> bool:
    from PIL import Image

    return Path(name).suffix.lower() in Image.registered_extensions()


def _existing(root: Path | None) -> Path:
    if root is None:
        raise InputError("The data set 'folder' needs data.root, the folder that holds your images.")
    root = root.expanduser()
    if not root.is_dir():
        raise InputError(f"There is no folder {root}: give the folder of your images as data.root.")
    return root


def _files(root: Path) -> Iterator[str]:
    visited: set[Path] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        here = Path(folder)
        if here.resolve() in visited:  # a link that leads back
            folders.clear()
            continue
        visited.add(here.resolve())
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = here / name
            # neither a pipe nor a device, which would block; a broken link is reported
            if not name.startswith(".") and (path.is_file() or not path.exists()):
                yield path.relative_to(root).as_posix()
