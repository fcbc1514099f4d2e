"""Clusters of new images, from the network of a complete run."""

from pathlib import Path
from typing import Literal, NamedTuple

from fedmcc import config
from fedmcc.data.decode import HeightWidth
from fedmcc.data.folder import Folder
from fedmcc.data.image_files import Listing, decode_files
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import Assignment, assignments_csv
from fedmcc.evaluation.features import extract
from fedmcc.runs.build import build_network
from fedmcc.runs.checkpoints import load_metadata, load_network
from fedmcc.runs.directory import Run
from fedmcc.runs.resolve import image_sides, without_first_weights
from fedmcc.training.torch_setup import set_up_torch

MARKS = (b"image,cluster,",)  # in the first line of what `fedmcc predict --out` writes


class Predicted(NamedTuple):
    """The clusters as CSV, and a message about skipped files."""

    csv: str
    skipped: str | None


def predict(run: Run, path: Path) -> Predicted:
    """Decode images as the run decoded its own, and assign them to clusters."""
    settings = without_first_weights(config.load(run.config_file, ["device=auto"]))
    channels = _channels(run)
    images = decode_files(_listing(path), _sides(run, settings), channels)
    set_up_torch(settings.general.thread_count)
    net = build_network(settings, channels)
    load_network(net, run.model_file)
    extracted = extract(net.online, images.images, settings.views.plain, settings.evaluation.batch_size)
    if extracted.assignments is None:
        raise InputError(f"{run.path} has no cluster head: train with a section [clustering] to predict.")
    return Predicted(
        assignments_csv(images, Assignment.from_soft(extracted.assignments)), images.skipped_message()
    )


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
