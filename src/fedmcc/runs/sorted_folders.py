"""A folder per cluster with copies of its images or links to them; the images themselves stay as they are."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import read_csv
from fedmcc.runs.directory import Run

FOLDER = "sorted"


class Sorted(NamedTuple):
    """The folder with a folder per cluster, and the images that are not in it."""

    path: Path
    missing: list[str]  # their names in the table are not those of files, such as names that are not text


def sort_images(run: Run, root: Path, link: bool) -> Sorted:
    """Copy or link every image of a table of assignments below `root` to the folder of its cluster."""
    target, missing = run.path / FOLDER, []
    for row in read_csv(run.assignments_file):
        if (root / row["image"]).exists():
            _place(root / row["image"], target / _folder_name(row) / row["image"], link)
        else:
            missing.append(row["image"])
    return Sorted(target, missing)


def _place(image: Path, place: Path, link: bool) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # of a command that was killed
        if link:
            place.symlink_to(image)
        else:
            shutil.copyfile(image, place)
    except OSError as error:
        raise InputError(f"Cannot write {place}: {error.strerror}. The table is complete.") from None


def _folder_name(row: dict[str, str]) -> str:
    """The number of a cluster and its name, without characters that a path cannot have."""
    name = "".join(char if char.isalnum() or char in " -_." else "_" for char in row.get("name") or "")
    return f"{row['cluster']} {name}".strip().replace(os.sep, "_")
