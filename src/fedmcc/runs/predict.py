"""The clusters of new images, by the network of a finished run."""

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


class Predicted(NamedTuple):
    """A line per image, and a sentence on the files that are none."""

    csv: str
    complaint: str | None


def predict(run: Run, path: Path) -> Predicted:
    """Decode the images as the run saw its own, and assign them."""
    settings = without_first_weights(config.load(run.config_file, ["device=auto"]))
    channels = _channels(run)
    images = decode_files(_listing(path), _sides(run, settings), channels)
    set_up_torch(settings.general.thread_count)
    net = build_network(settings, channels)
    load_network(net, run.model_file)
    extracted = extract(net.online, images.images, settings.views.plain, settings.evaluation.batch_size)
    if extracted.assignments is None:
        raise InputError(f"{run.path} has no cluster head: its method learns features alone.")
    return Predicted(
        assignments_csv(images, Assignment.from_soft(extracted.assignments)), images.skipped_message()
    )


def _channels(run: Run) -> Literal[1, 3]:
    found = load_metadata(run.model_file).get("channels")
    if found not in ("1", "3"):
        raise InputError(f"{run.model_file} does not say how many channels its images have: use a run's own.")
    return 1 if found == "1" else 3


def _sides(run: Run, settings: config.Config) -> HeightWidth:
    """Height and width of the images that the run saw: views then squash new ones as they did those."""
    match run.read_json("environment.json").get("sides"):
        case [int(height), int(width)]:
            return height, width
    told = image_sides(settings)
    if told is None:
        raise InputError("The run's configuration has no views.size: use the config.toml that the run wrote.")
    return told


def _listing(path: Path) -> Listing:
    if path.is_file():
        return Listing(path.parent, (path.name,))
    if not path.is_dir():
        raise InputError(
            f"There is no image and no folder at {path}: give one of your images or their folder."
        )
    return Folder(root=path, labels=False).listing()
