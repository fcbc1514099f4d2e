"""Any tree of images: yours."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedmcc.data.tree import ImageFiles, Listing
from fedmcc.errors import InputError


@dataclass(frozen=True)
class Folder(ImageFiles):
    """The images below `root`; the folders directly in it may be their classes."""

    labels: Literal["auto", True, False] = "auto"  # auto: yes if all lie in two or more such folders

    def listing(self) -> Listing:
        """All files but hidden ones, sorted by path."""
        root = _existing(self.root)
        names = tuple(sorted(_files(root)))
        if not names:
            raise InputError(f"The folder {root} is empty: put images in it, or give another data.root.")
        classes = self._classes(root, names)
        number = {name: label for label, name in enumerate(classes)}
        labels = tuple(number.get(name.split("/")[0], -1) for name in names) if classes else None
        return Listing(root, names, labels, classes, split="all")

    def _classes(self, root: Path, names: tuple[str, ...]) -> tuple[str, ...]:
        loose = [name for name in names if "/" not in name and _named_as_image(name)]
        folders = tuple(sorted({name.split("/")[0] for name in names if "/" in name}))
        if self.labels is True and loose:
            raise InputError(
                f"{root / loose[0]} lies in no class folder: move it, or set data.labels to false."
            )
        wanted = self.labels is True or (self.labels == "auto" and not loose and len(folders) > 1)
        return folders if wanted else ()


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
