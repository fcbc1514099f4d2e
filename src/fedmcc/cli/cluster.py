"""The command for a folder of images and little time: cluster."""

import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from fedmcc.cli.app import Quiet, command
from fedmcc.errors import InputError

if TYPE_CHECKING:
    from fedmcc.config import Config
    from fedmcc.data.base import ImageSet
    from fedmcc.data.image_files import Listing
    from fedmcc.data.survey import Survey
    from fedmcc.runs.build import Experiment
    from fedmcc.runs.directory import Run
    from fedmcc.runs.pacing import Budget

DUPLICATES = "duplicates.csv"
FOR_PHOTOGRAPHS = "lite2"  # the encoder
REMAINING = "remaining.json"  # what is to be done after the training; `resume` does it if this was killed


class Choices(NamedTuple):
    """What the user chose."""

    clusters: int | str | None  # a number, or auto
    encoder: dict[str, Any]  # the section of the configuration; empty: the images decide
    owners: bool
    labels: bool
    time: str
    general: dict[str, int]  # threads and seed
    sort: Literal["", "copy", "link"] = ""  # images into a folder per cluster


@command
def cluster(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images.")],
    clusters: Annotated[
        str | None, typer.Option(help="A number, or auto [number of labels, or auto].")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name of an encoder, or a pretrained file [it suits the images].")
    ] = None,
    owners_from_folders: Annotated[
        bool, typer.Option("--owners-from-folders", help="Subfolders are owners.")
    ] = False,
    labels_from_folders: Annotated[
        bool, typer.Option("--labels-from-folders", help="Subfolders are labels.")
    ] = False,
    limit: Annotated[str, typer.Option("--time", help="For everything: 90s, 1h30m.")] = "10m",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads [OMP_NUM_THREADS, or one per core].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives another result.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The new folder [runs/FOLDER-001].")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy images to a folder per cluster.")] = False,
    link: Annotated[bool, typer.Option("--link", help="Link to images instead.")] = False,
    quiet: Quiet = False,
) -> None:
    """Cluster a folder of images in a given time.

    Example: fedmcc cluster PICTURES --clusters 12 --time 10m
    """
    from fedmcc.cli.option_names import require_registered
    from fedmcc.runs.directory import next_free, require_no_run, require_unused
    from fedmcc.runs.encoder_names import encoder_section

    started, seconds = time.monotonic(), parse_time(limit)
    if copy and link:
        raise InputError("--copy and --link exclude each other: choose one.")
    require_no_run(folder)
    path = out or next_free(Path("runs"), folder.resolve().name)
    require_unused(path)
    if path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path} is inside {folder}: choose another folder with --out.")
    section = {} if encoder is None else encoder_section(encoder)
    if section:
        require_registered("encoder", section["name"])
    choices = Choices(
        clusters=_number(clusters),
        encoder=section,
        owners=owners_from_folders,
        labels=labels_from_folders,
        time=limit,
        general={"seed": seed} if threads is None else {"seed": seed, "threads": threads},
        sort="copy" if copy else "link" if link else "",
    )
    listing = _data(folder, choices, None).listing()
    if isinstance(choices.clusters, int) and choices.clusters > len(listing.names):
        raise InputError(
            f"{clusters} clusters of {len(listing.names)} files: lower --clusters or give more images."
        )
    _cluster(folder, listing, choices, path, started + seconds)


def parse_time(text: str) -> float:
    """Seconds of a duration such as 90s, 10m, 1.5h or 1h30m."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"\s*(?:{number}h)?\s*(?:{number}m)?\s*(?:{number}s?)?\s*", text)
    hours, minutes, rest = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    seconds = 3600 * hours + 60 * minutes + rest
    if seconds <= 0:
        raise InputError(f"--time is '{text}': give a duration such as 90s, 10m or 1h30m.")
    return seconds


def _number(clusters: str | None) -> int | str | None:
    if clusters in (None, "auto"):
        return clusters
    if not clusters.isdecimal():
        raise InputError(f"--clusters is '{clusters}': give a number, such as 10, or auto.")
    if int(clusters) < 2:
        raise InputError(f"--clusters is {clusters}: give 2 or more, or auto.")
    return int(clusters)


def _cluster(folder: Path, listing: "Listing", choices: Choices, path: Path, deadline: float) -> None:
    from fedmcc.cli.run import Outputs, train
    from fedmcc.data import survey
    from fedmcc.methods.choosing import AUTO
    from fedmcc.networks import is_frozen
    from fedmcc.runs import build, experiment, resolve, schedule

    sides = survey.file_sides(listing.root, listing.names)
    if not choices.encoder:
        photographs = survey.are_photographs(listing.root, listing.names, sides)
        choices = choices._replace(encoder={"name": _encoder(photographs)})
    size = _native_size(choices) or schedule.choose_size(sides)
    images = _data(folder, choices, size).load()
    found = survey.survey(images, sides)
    _tell(found, images)
    labelled = images.labels is not None
    clusters = choices.clusters or (resolve.count_classes(images) if labelled else AUTO)
    loaded, budget = _configure(folder, choices, found, images, clusters), None
    if not is_frozen(loaded.encoder):
        loaded, budget = _scheduled(loaded, images, deadline, choices.time)
    prepared = build.assemble(loaded, images)
    run = experiment.start_run(prepared, path)
    _write_duplicates(run, found, images)
    run.write_json(REMAINING, {"folder": str(folder.resolve()), "sort": choices.sort})
    train(prepared, run, Outputs(), budget)
    complete(run, prepared)


def complete(run: "Run", prepared: "Experiment", report: bool = True) -> None:
    """Do what follows the training: outliers in the table, the report, folders of sorted images."""
    from fedmcc.cli.run import write_report

    remaining = run.read_json(REMAINING)
    _judge(run)
    if report:
        write_report(prepared, run)  # with the outliers of the table
    if sort := remaining.get("sort"):
        _sort(run, Path(remaining["folder"]), sort == "link")
    (run.path / REMAINING).unlink()


def _encoder(photographs: bool) -> str:
    """The encoder for photographs, if its package is installed, or for other images."""
    from fedmcc import config
    from fedmcc.errors import InputError
    from fedmcc.networks import resolve_encoder
    from fedmcc.terminal import output

    trained = config.CHOICES["encoder"][1]
    if not photographs:
        return trained
    try:
        resolve_encoder(config.parse({"encoder": {"name": FOR_PHOTOGRAPHS}}).encoder)
    except InputError as error:
        output.warn(f"These are photographs, which a pretrained encoder suits better. {error}")
        return trained
    output.say(
        f"These are photographs: the encoder is {FOR_PHOTOGRAPHS}. To train one instead: --encoder {trained}."
    )
    return FOR_PHOTOGRAPHS


def _data(folder: Path, choices: Choices, size: int | None) -> Any:
    from fedmcc.data.folder import Folder

    options: dict[str, Any] = {} if size is None else {"size": size}
    return Folder(root=folder.resolve(), labels=choices.labels, groups=choices.owners, **options)


def _tell(found: "Survey", images: "ImageSet") -> None:
    from fedmcc.terminal import output

    if skipped := images.skipped_message():
        output.warn(skipped)
    smallest, median, largest = (f"{w} × {h}" for w, h in (found.smallest, found.median, found.largest))
    colour = "grey" if found.grey else "in colour"
    output.say(
        f"{found.images:,} images {colour}, {smallest} to {largest} pixels, typically {median}; "
        f"decoded to {images.images.shape[3]} pixels."
    )
    if found.duplicates is None:
        output.say("There are too many images to search for near-duplicates.")
    elif found.duplicates:
        extra = sum(map(len, found.duplicates)) - len(found.duplicates)
        output.say(f"{extra:,} images are near-duplicates of others; {DUPLICATES} lists them.")


def _configure(
    folder: Path, choices: Choices, found: "Survey", images: "ImageSet", clusters: int | str
) -> "Config":
    from fedmcc import config
    from fedmcc.networks import is_frozen
    from fedmcc.runs.resolve import with_possible_batch
    from fedmcc.runs.schedule import choose_views
    from fedmcc.terminal import output

    preset, reason = choose_views(found)
    table: config.Table = {
        **choices.general,
        "clusters": clusters,
        "data": {
            "name": "folder",
            "root": str(folder.resolve()),
            "size": images.images.shape[3],
            "labels": choices.labels,
            "groups": choices.owners,
        },
        "views": {"preset": preset},
        "encoder": choices.encoder,
        "partition": {"name": "by_group"} if choices.owners else {},
    }
    loaded = with_possible_batch(config.parse(table), images)
    if is_frozen(loaded.encoder):
        output.say("The encoder is pretrained: its features are clustered, nothing is trained.")
    else:
        method = config.name_of("method", loaded.method)
        output.say(f"Views: {preset}, since {reason}. Encoder: {choices.encoder['name']}. Method: {method}.")
    return loaded


def _native_size(choices: Choices) -> int | None:
    """Side in pixels of the images that a pretrained encoder was trained on; None for other encoders."""
    from fedmcc import config
    from fedmcc.networks import in_files, native_size

    encoder = config.parse({**choices.general, "encoder": choices.encoder}).encoder
    return native_size(encoder) if in_files(encoder) else None


def _scheduled(
    loaded: "Config", images: "ImageSet", deadline: float, limit: str
) -> tuple["Config", "Budget"]:
    from fedmcc.runs.pacing import Budget
    from fedmcc.runs.schedule import MIN_EPOCHS, TOO_FEW, plan_schedule, with_schedule
    from fedmcc.terminal import output
    from fedmcc.terminal.progress import format_duration

    seconds = deadline - time.monotonic()
    planned = plan_schedule(loaded, images, seconds)
    output.say(
        f"Views of {planned.size} pixels; an epoch takes {planned.epoch_seconds:.1f} s on this machine, so "
        f"{planned.epochs} epochs, about {format_duration(planned.seconds)} with all else (--time {limit})."
    )
    if planned.epochs < MIN_EPOCHS:
        output.warn(TOO_FEW)
    return with_schedule(loaded, planned), Budget(planned, parse_time(limit), deadline)


def _write_duplicates(run: "Run", found: "Survey", images: "ImageSet") -> None:
    from fedmcc.evaluation.assignments import csv_lines, names_and_labels
    from fedmcc.storage.atomic_files import write_atomically

    if not found.duplicates:
        return
    names = [name for name, _ in names_and_labels(images)]
    rows = [(names[row], names[group[0]]) for group in found.duplicates for row in group[1:]]
    write_atomically(run.path / DUPLICATES, csv_lines([("image", "duplicate_of"), *rows]))


def _judge(run: "Run") -> None:
    """Add distances and outliers to the table."""
    from fedmcc.runs import clusters
    from fedmcc.terminal import output

    table, geometry = clusters.rewrite_table(run), clusters.load_geometry(run)
    sentences = [f"{run.assignments_file} has the cluster of every image."]
    if table.judgement is not None and geometry is not None:
        sentences.append(_outlier_sentence(int(table.judgement.outlier.sum()), geometry.limit))
    output.say(" ".join(sentences))


def _outlier_sentence(outliers: int, limit: float) -> str:
    from fedmcc.evaluation.geometry import FALSE_ALARMS

    if math.isinf(limit):
        return f"There are too few images to mark outliers: {round(1 / FALSE_ALARMS) - 1} are needed."
    return f"{outliers} are outliers, at a limit that {FALSE_ALARMS:.0%} of ordinary images exceed."


def _sort(run: "Run", folder: Path, link: bool) -> None:
    """Sort the images into folders."""
    from fedmcc.runs import sorted_folders
    from fedmcc.terminal import output

    written = sorted_folders.sort_images(run, folder, link)
    output.say(f"{written.path} has a folder per cluster.")
    if written.missing:
        output.warn(f"{len(written.missing)} images are not in it: their names are not text.")
