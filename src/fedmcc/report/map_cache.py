"""Where the network puts the images: points of a plane, kept in the run directory for the next report."""

import hashlib
import io
import zipfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
from jaxtyping import Float32, Int64

from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically

FILE = "cache/landscape.npz"


@dataclass(frozen=True, eq=False)
class Landscape:
    """A point for each image of a sample, and how typical of its cluster every image is."""

    rows: Int64[np.ndarray, " m"]
    points: Float32[np.ndarray, "m 2"]
    typicality: Float32[np.ndarray, " n"]


def load(run: Run) -> Landscape | None:
    """What an earlier report of the same network kept."""
    path = run.path / FILE
    if not path.exists() or not run.model_file.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            if str(found["key"]) != _key(run):
                return None
            return Landscape(found["rows"], found["points"], found["typicality"])
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile):
        return None  # it is made again


def save(run: Run, landscape: Landscape) -> None:
    """Keep it for the next report, if the run can be written to; only of a network that will not change."""
    if not run.model_file.exists():
        return
    buffer = io.BytesIO()
    arrays = cast(dict[str, np.ndarray], asdict(landscape) | {"key": np.array(_key(run))})
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    path = run.path / FILE
    with suppress(OSError):  # of a run that others keep, the next report looks again
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, buffer.getvalue())


def _key(run: Run) -> str:
    with run.model_file.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
