"""Commands that show runs, data and registries: predict, views, partition, list."""

from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.app import Force, Quiet, Recipe, RunFolder, Settings, command
from fedmcc.cli.run import load_recipe

PARQUET = ".parquet"
JSON_LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = ("", ".txt", ".csv", *JSON_LINES, PARQUET)  # of tables; the first two follow --json


@command
def predict(
    run: RunFolder,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or one image.")],
    out: Annotated[Path | None, typer.Option(help="The file to write [standard output].")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="JSON lines [by the name: .csv, .jsonl or .parquet].")
    ] = False,
    clusters: Annotated[int | None, typer.Option(help="Another number of clusters than the run has.")] = None,
    site: Annotated[str | None, typer.Option(help="The client of the run that owns the images.")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Assign images to clusters.

    Example: fedmcc predict runs/PICTURES-001 MORE --out clusters.csv
    """
    from fedmcc.errors import InputError
    from fedmcc.runs import directory, predict
    from fedmcc.storage.atomic_files import write_output
    from fedmcc.terminal import output

    suffix = "" if out is None else out.suffix.lower()
    _require_own(out, suffix, json, force)
    if out is not None and out.resolve() in {path.resolve() for path in directory.load_run(run).tables}:
        raise InputError(f"{out} is the table of the run itself: give --out another name.")
    skipped: dict[str, str] = {}
    predictor = predict.Predictor.load(directory.load_run(run), clusters, site)
    as_json = json or suffix in JSON_LINES
    lines = predictor.lines(images, "jsonl" if as_json else "csv", skipped)
    if out is None:
        for block in lines:
            typer.echo(block, nl=False)
    elif suffix == PARQUET:
        write_output(out, predictor.parquet(images, skipped))
    else:
        write_output(out, (block.encode() for block in lines))
    if warning := predict.skipped_message(skipped):
        output.warn(warning)


def _require_own(out: Path | None, suffix: str, json: bool, force: bool) -> None:
    """Raise InputError if the file exists and `predict` did not write it, or if it cannot be written."""
    from fedmcc.errors import InputError
    from fedmcc.evaluation.parquet import require_parquet
    from fedmcc.runs.predict import MARKS
    from fedmcc.storage.atomic_files import require_own

    if suffix not in ENDINGS:
        raise InputError(
            f"{out} has an unknown ending: give --out a name that ends in .csv, .jsonl or .parquet."
        )
    if json and suffix in (".csv", PARQUET):
        raise InputError(f"{out} does not name JSON lines: leave out --json, or end the name in .jsonl.")
    if out is not None and suffix == PARQUET:
        require_parquet(out, force)
    else:
        require_own(out, MARKS, force)


@command
def views(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Name of a data set, or a folder of images.")
    ],
    out: Annotated[Path, typer.Option(help="The PNG file to write.")],
    preset: Annotated[str, typer.Option(help="A preset, `auto` (that of the data set), or `all`.")] = "auto",
    settings: Settings = None,
    force: Force = False,
) -> None:
    """Draw the augmented views that training uses.

    Example: fedmcc views PICTURES --out views.png
    """
    from fedmcc.report import pictures
    from fedmcc.terminal import output

    pictures.write_views(dataset, preset, settings or [], out, force)
    output.say(f"Wrote {out}.")


@command
def partition(
    recipe: Recipe,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="A PNG file to write as well.")] = None,
    force: Force = False,
) -> None:
    """Show how many images of each class each client would have.

    Example: fedmcc partition recipe.toml --set partition.clients=5
    """
    from fedmcc.data.partition import holdings
    from fedmcc.report import pictures
    from fedmcc.runs import build
    from fedmcc.terminal import output

    loaded = load_recipe(recipe, settings)
    if out is not None:
        pictures.require_own_png(out, pictures.HOLDINGS, force)
    images = loaded.data.load()
    if skipped := images.skipped_message():
        output.warn(skipped)
    held = holdings(images, build.share_out(loaded, images))
    output.show_holdings(held.clients, held.classes, held.counts.tolist())
    if out is not None:
        pictures.write_holdings(held, out, force)
        output.say(f"Wrote {out}.")


@command
def list(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, clusterings, datasets, views, encoders, partitions, engines or protocols.",
        ),
    ],
) -> None:
    """List methods, data sets and so on, with options and defaults.

    Example: fedmcc list methods
    """
    from fedmcc.cli import listing
    from fedmcc.errors import unknown
    from fedmcc.terminal import output

    if kind not in listing.KINDS:
        raise unknown("list", kind, listing.KINDS)
    for heading, entries in listing.groups(kind).items():
        output.show_registry(heading, entries)
