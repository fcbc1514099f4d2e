"""The map of a run's images: points in the plane, cached in the run directory for the next report."""

import hashlib
import io
import zipfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import cast

import numpy as np
from jaxtyping import Float32, Int32, Int64

from fedmcc.runs.directory import Run
from fedmcc.storage.atomic_files import write_atomically

FILE = "cache/landscape.npz"


@dataclass(frozen=True, eq=False)
class ImageMap:
    """Points of a sample of the images (`rows`), and how typical of its cluster every image is.

    `neighbours` are, for every image, the most similar other images of the sample, as positions in `rows`.
    """

    rows: Int64[np.ndarray, " m"]
    points: Float32[np.ndarray, "m 2"]
    typicality: Float32[np.ndarray, " n"]
    neighbours: Int32[np.ndarray, "_ k"] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))

    def similar(self, row: int) -> list[int]:
        """Positions in the sample of the images that are most similar to an image."""
        return self.neighbours[row].tolist() if row < len(self.neighbours) else []


def load_map(run: Run) -> ImageMap | None:
    """The map that an earlier report cached, or None if it is missing, damaged or of another network."""
    path = run.path / FILE
    if not path.exists() or not run.model_file.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if str(arrays["key"]) != _key(run):
                return None
            return ImageMap(arrays["rows"], arrays["points"], arrays["typicality"], arrays["neighbours"])
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile):
        return None


def save_map(run: Run, image_map: ImageMap) -> None:
    """Cache the map of a run's final network; do nothing if there is none or the run is read-only."""
    if not run.model_file.exists():
        return
    buffer = io.BytesIO()
    arrays = cast(dict[str, np.ndarray], asdict(image_map) | {"key": np.array(_key(run))})
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    path = run.path / FILE
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, buffer.getvalue())


def _key(run: Run) -> str:
    """Hash of the final network: a map belongs to one network."""
    with run.model_file.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
