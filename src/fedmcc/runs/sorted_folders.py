"""A folder per cluster with copies of its images or links to them; the images themselves stay as they are."""

import csv
import os
import shutil
from pathlib import Path

from fedmcc.errors import InputError
from fedmcc.runs.directory import Run

FOLDER = "sorted"


def sort_images(run: Run, root: Path, link: bool) -> Path:
    """Copy or link every image of a table of assignments below `root` to the folder of its cluster."""
    target = run.path / FOLDER
    with run.assignments_file.open(newline="") as file:
        for row in csv.DictReader(file):
            place = target / _folder_name(row) / row["image"]
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if link:
                    place.symlink_to(root / row["image"])
                else:
                    shutil.copyfile(root / row["image"], place)
            except OSError as error:
                raise InputError(f"Cannot write {place}: {error.strerror}. Remove {target}.") from None
    return target


def _folder_name(row: dict[str, str]) -> str:
    """The number of a cluster and its name, without characters that a path cannot have."""
    name = "".join(char if char.isalnum() or char in " -_." else "_" for char in row.get("name") or "")
    return f"{row['cluster']} {name}".strip().replace(os.sep, "_")
