"""Commands that look at runs, data and what there is: evaluate, predict, views, partition, list."""

from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.program import Recipe, RunFolder, Settings, command
from fedmcc.cli.training import load_recipe, method_name


@command
def evaluate(run: RunFolder) -> None:
    """Score the final network of a run again, on its images."""
    from fedmcc import assembly, checkpoints, config, runs, screen

    opened = runs.open_run(run)
    # What was trained on one device can be scored on any.
    loaded = assembly.without_first_weights(config.load(opened.config_file, ["device=auto"]))
    experiment = assembly.prepare(loaded)
    checkpoints.load_network(experiment.net, opened.model_file)
    online, scorer = experiment.net.online, assembly.scorer_of(experiment.config, experiment.images)
    scores = scorer.final(online, scorer.extract(online))
    screen.show_scores(scores, method_name(experiment.config))


@command
def predict(
    run: RunFolder,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or one image.")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write [standard output].")] = None,
) -> None:
    """Say which cluster each image belongs to."""
    from fedmcc import prediction, runs, screen
    from fedmcc.files import write_output

    predicted = prediction.predict(runs.open_run(run), images)
    if predicted.complaint:
        screen.warn(predicted.complaint)
    if out is None:
        typer.echo(predicted.csv, nl=False)
    else:
        write_output(out, predicted.csv)


@command
def views(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Its name, or a folder of images.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")],
    preset: Annotated[str, typer.Option(help="Whose views: a preset, `auto`, or `all` of them.")] = "auto",
    settings: Settings = None,
) -> None:
    """Draw the views that training would see, to judge them by eye."""
    from fedmcc import pictures, screen

    pictures.write_views(dataset, preset, settings or [], out)
    screen.say(f"Wrote {out}.")


@command
def partition(
    recipe: Recipe,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="A picture of it to write.")] = None,
) -> None:
    """Show which client would hold how many images of each class."""
    from fedmcc import assembly, pictures, screen
    from fedmcc.partition import holdings

    loaded = load_recipe(recipe, settings)
    if out is not None:
        pictures.refuse_unless_png(out)
    images = loaded.data.load()
    if complaint := images.complaint():
        screen.warn(complaint)
    held = holdings(images, assembly.share_out(loaded, images))
    screen.show_holdings(held.clients, held.classes, held.counts.tolist())
    if out is not None:
        pictures.write_holdings(held, out)
        screen.say(f"Wrote {out}.")


@command
def list(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, clusterings, datasets, views, encoders, partitions or engines.",
        ),
    ],
) -> None:
    """Show what there is, with its options and their defaults."""
    from fedmcc import registries, screen
    from fedmcc.errors import unknown

    if kind not in registries.KINDS:
        raise unknown("list", kind, registries.KINDS)
    screen.show_registry(kind, registries.entries(kind))
