"""Clusters of new images, from the network of a complete run, block by block in constant memory."""

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.data.decode import HeightWidth
from fedmcc.data.folder import Folder
from fedmcc.data.image_files import Listing, decode_block, nothing_readable
from fedmcc.data.progress_bar import progress_counter
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import (
    COLUMNS,
    Assignment,
    columns_of,
    csv_body,
    csv_lines,
    json_lines,
    table_rows,
)
from fedmcc.evaluation.features import at_owner, extract
from fedmcc.evaluation.geometry import Geometry
from fedmcc.evaluation.parquet import parquet_chunks
from fedmcc.networks.momentum import Network
from fedmcc.runs.build import build_network
from fedmcc.runs.checkpoints import load_metadata, load_network
from fedmcc.runs.cluster_choice import apply_cut, mixture_of, recut
from fedmcc.runs.clusters import Edits, judged, load_edits, load_geometry
from fedmcc.runs.directory import Run
from fedmcc.runs.resolve import image_sides, without_first_weights
from fedmcc.training.torch_setup import set_up_torch

MARKS = (",".join(COLUMNS).encode(), b'{"image": ')  # in the first line of what `predict --out` writes

Format = Literal["csv", "jsonl"]


class Predicted(NamedTuple):
    """The clusters as CSV, and a message about skipped files."""

    csv: str
    skipped: str | None


def predict(run: Run, path: Path) -> Predicted:
    """Decode images as the run decoded its own, and assign them to clusters."""
    skipped: dict[str, str] = {}
    text = "".join(Predictor.load(run).lines(path, "csv", skipped))
    return Predicted(text, skipped_message(skipped))


def skipped_message(skipped: dict[str, str]) -> str | None:
    """A sentence that counts and lists skipped files; None if there are none."""
    reports = tuple(f"{name}: {why}" for name, why in skipped.items())
    return ImageSet(np.zeros((0, 1, 1, 1), dtype=np.uint8), skipped=reports).skipped_message()


@dataclass(frozen=True, eq=False)
class Predictor:
    """The final network of a run, with all that is needed to assign new images."""

    net: Network
    settings: config.Config
    target: tuple[HeightWidth, Literal[1, 3]]  # sides and channels of decoded images
    geometry: Geometry | None
    edits: Edits
    mixture: Tensor | None = None  # of clusters at the client that has the images; None: unknown

    @classmethod
    def load(cls, run: Run, clusters: int | None = None, site: str | None = None) -> "Predictor":
        """Load the network of a complete run, with another number of clusters or for images of one client."""
        settings = without_first_weights(config.load(run.config_file, ["device=auto"]))
        channels = _channels(run)
        set_up_torch(settings.general.thread_count)
        net = build_network(settings, channels)
        load_network(net, run.model_file)
        if net.online.cluster_projector is None:
            raise InputError(f"{run.path} has no cluster head: train with a section [clustering] to predict.")
        apply_cut(net, run)
        edits, geometry = load_edits(run), load_geometry(run)
        if clusters is not None:
            recut(net, run, clusters)
            edits, geometry = Edits(), None
        mixture = None if site is None else mixture_of(run, net, site)
        return cls(net, settings, (_sides(run, settings), channels), geometry, edits, mixture)

    def lines(self, path: Path, format: Format, skipped: dict[str, str]) -> Iterator[str]:
        """The table of the images, block by block; unreadable files are added to `skipped`."""
        first = True
        for images, assignment in self._assigned(path, skipped):
            if format == "jsonl":
                yield json_lines(images, assignment)
                continue
            header = csv_lines([columns_of(assignment)]) if first else ""
            first = False
            yield header + csv_body(images, assignment)

    def parquet(self, path: Path, skipped: dict[str, str]) -> Iterator[bytes]:
        """The table of the images as a Parquet file, block by block."""
        return parquet_chunks([*table_rows(*block)] for block in self._assigned(path, skipped))

    def _assigned(self, path: Path, skipped: dict[str, str]) -> Iterator[tuple[ImageSet, Assignment]]:
        listing = _listing(path)
        for images in self._blocks(listing, skipped):
            yield images, self.assign(images)
        if len(skipped) == len(listing.names):
            raise nothing_readable(listing, skipped)

    def assign(self, images: ImageSet) -> Assignment:
        """The clusters of decoded images."""
        settings = self.settings
        extracted = extract(
            self.net.online, images.images, settings.views.plain, settings.evaluation.batch_size
        )
        if self.mixture is not None:
            soft = at_owner(self.net.online, extracted.features, self.mixture)
            extracted = extracted._replace(assignments=soft)
        return judged(extracted, self.geometry, self.edits)

    def _blocks(self, listing: Listing, skipped: dict[str, str]) -> Iterator[ImageSet]:
        """The readable images, as many at a time as the run scores at once."""
        size = self.settings.evaluation.batch_size
        with (
            warnings.catch_warnings(),
            ThreadPoolExecutor(os.cpu_count()) as pool,
            progress_counter("assigning images", len(listing.names)) as advance,
        ):
            warnings.simplefilter("ignore")  # Pillow warns about unusual files; failures are reported
            for start in range(0, len(listing.names), size):
                names = listing.names[start : start + size]
                found = decode_block(listing.root, names, self.target, pool)
                pairs = list(zip(names, found, strict=True))
                skipped.update((name, why) for name, why in pairs if isinstance(why, str))
                readable = [(name, image) for name, image in pairs if not isinstance(image, str)]
                if readable:
                    stacked = np.stack([image for _, image in readable])
                    yield ImageSet(stacked, names=[name for name, _ in readable])
                advance(len(names))


def _channels(run: Run) -> Literal[1, 3]:
    channels = load_metadata(run.model_file).get("channels")
    if channels not in ("1", "3"):
        raise InputError(f"{run.model_file} lacks the number of channels: use the file that the run wrote.")
    return 1 if channels == "1" else 3


def _sides(run: Run, settings: config.Config) -> HeightWidth:
    """Height and width of the run's images, to which new ones are decoded so that views change both alike."""
    match run.read_json("environment.json").get("sides"):
        case [int(height), int(width)]:
            return height, width
    sides = image_sides(settings)
    if sides is None:
        raise InputError("The run's configuration has no views.size: use the config.toml that the run wrote.")
    return sides


def _listing(path: Path) -> Listing:
    if path.is_file():
        return Listing(path.parent, (path.name,))
    if not path.is_dir():
        raise InputError(f"There is no image or folder at {path}: give an image, or a folder of images.")
    return Folder(root=path, labels=False).listing()
