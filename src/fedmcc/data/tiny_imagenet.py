"""Tiny-ImageNet from the official zip file or its unpacked folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fedmcc.data.archive import find_or_unpack
from fedmcc.data.base import split_parts
from fedmcc.data.download import Remote, search_folders
from fedmcc.data.image_files import ImageFiles, Listing
from fedmcc.errors import InputError


@dataclass(frozen=True)
class TinyImageNet(ImageFiles):
    """100,000 + 10,000 photographs of 64 x 64 pixels, 200 classes."""

    splits: ClassVar[tuple[str, str]] = ("train", "val")
    archive: ClassVar[Remote] = Remote(
        "tiny-imagenet-200.zip",
        "md5:90528d7ca1a48142e341f4ef8d21d0de",
        ("http://cs231n.stanford.edu/",),
    )
    size: int = 64
    channels: Literal["auto", 1, 3] = 3
    split: Literal["train", "val", "train+val"] = "train"

    def listing(self) -> Listing:
        """List the files of the split; those of `train` are sorted by class."""
        read = {"train": _train, "val": _val}
        parts = split_parts(self.split, tuple(read))
        root = find_or_unpack(
            self.archive, "tiny-imagenet-200", "wnids.txt", search_folders(self.root, "tiny-imagenet")
        )
        wnids = sorted((root / "wnids.txt").read_text().split())
        pairs = [pair for part in parts for pair in read[part](root, wnids)]
        if not pairs:
            raise InputError(f"{root} contains no images: delete it to unpack it again.")
        names, labels = zip(*pairs, strict=True)
        return Listing(root, names, labels, _classes(root, wnids), self.split)


def _train(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    return [
        (path.relative_to(root).as_posix(), label)
        for label, wnid in enumerate(wnids)
        for path in sorted((root / "train" / wnid / "images").glob("*.JPEG"))
    ]


def _val(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    table = root / "val" / "val_annotations.txt"
    if not table.is_file():
        raise InputError(f"{table} is missing: delete the folder {root} to unpack it again.")
    rows = (line.split("\t") for line in table.read_text().splitlines())
    try:
        return [(f"val/images/{row[0]}", wnids.index(row[1])) for row in rows]
    except (IndexError, ValueError) as error:
        raise InputError(f"{table} is damaged: delete the folder {root} to unpack it again.") from error


def _classes(root: Path, wnids: list[str]) -> tuple[str, ...]:
    """Class names from words.txt, or the WordNet identifier of a class that is missing there."""
    table = root / "words.txt"
    lines = table.read_text().splitlines() if table.is_file() else []
    class_names = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(class_names.get(wnid, wnid) for wnid in wnids)
