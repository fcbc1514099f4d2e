"""The commands. Each imports what it needs when it runs, so that `fedmcc --help` is instant."""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from fedmcc.assembly import Experiment
    from fedmcc.config import Config
    from fedmcc.runs import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take two thirds of the time that it takes
)

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change an option, such as method.momentum=0.996.")
]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file, or a folder of images.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose failures are one sentence and an exit code: 2 for the user's input, 1 for ours."""

    @functools.wraps(function)
    def answered(*args: Any, **options: Any) -> None:
        from fedmcc.errors import InputError

        try:
            function(*args, **options)
        except InputError as error:
            _stop(str(error), 2)
        except ArithmeticError as error:  # DivergedError
            _stop(str(error), 1)
        except BrokenPipeError:
            raise  # `fedmcc predict ... | head`: click ends quietly
        except OSError as error:
            _stop(f"The system refused: {error}.", 1)
        except KeyboardInterrupt:
            _stop("Interrupted.", 130)

    app.command()(answered)
    return answered


def main() -> None:
    """The program."""
    # Threads that wait for one another spin briefly: docs/decisions/0006-waiting-threads.md has the figures.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("fedmcc").setLevel(logging.INFO)
    app()


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fedmcc {version('fedmcc')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Cluster images that cannot leave their owners."""


@command
def run(
    recipe: Recipe,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The new run directory [runs/RECIPE-001].")] = None,
) -> None:
    """Train on a recipe, or on a folder of images.

    For a folder say how many clusters there are: `fedmcc run PICTURES --set clusters=10`.
    """
    _begin(_load(recipe, settings), out, recipe.resolve().stem)


@command
def resume(run: RunFolder) -> None:
    """Go on with an interrupted run, to the same bits as without."""
    from fedmcc import assembly, config, runs, screen

    opened = runs.open_run(run)
    loaded = config.load(opened.config_file)
    if opened.finished:
        screen.say(f"{run} is complete: nothing to resume.")
        screen.show_scores(opened.read_json("scores.json"), _method(loaded))
    else:
        _train(assembly.prepare(loaded), opened)


@command
def evaluate(run: RunFolder) -> None:
    """Score the final network of a run again, on its images."""
    from fedmcc import assembly, checkpoints, config, runs, screen

    opened = runs.open_run(run)
    # What was trained on one device can be scored on any.
    loaded = assembly.without_first_weights(config.load(opened.config_file, ["device=auto"]))
    experiment = assembly.prepare(loaded)
    checkpoints.load_network(experiment.net, opened.model_file)
    online = experiment.net.online
    scores = experiment.scorer.final(online, experiment.scorer.extract(online))
    screen.show_scores(scores, _method(experiment.config))


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

    loaded = _load(recipe, settings)
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


@command
def demo(
    out: Annotated[Path | None, typer.Option(help="The new run directory [runs/demo-001].")] = None,
) -> None:
    """Five clients cluster handwritten digits, in a few minutes."""
    from importlib.resources import as_file, files

    from fedmcc import config

    with as_file(files("fedmcc") / "demo.toml") as recipe:
        loaded = config.load(recipe)
    _begin(loaded, out, "demo")


def _load(recipe: Path, settings: Sequence[str] | None) -> "Config":
    from fedmcc import config

    if not recipe.is_dir():
        return config.load(recipe, settings or [])
    table: config.Table = {"data": {"name": "folder", "root": str(recipe)}}
    return config.parse(config.apply_settings(table, settings or []))


def _begin(loaded: "Config", out: Path | None, name: str) -> None:
    from fedmcc import assembly, experiment, runs, screen
    from fedmcc.partition import holdings

    prepared = assembly.prepare(loaded)
    if complaint := prepared.images.complaint():
        screen.warn(complaint)
    run = experiment.begin(prepared, out or runs.next_free(Path("runs"), name))
    held = holdings(prepared.images, assembly.share_out(prepared.config, prepared.images))
    screen.mention_holdings(held.clients, held.classes, held.counts.tolist())
    _train(prepared, run)


def _train(prepared: "Experiment", run: "Run") -> None:
    from shlex import quote

    from fedmcc import experiment, meters, screen

    method, clusters = _method(prepared.config), prepared.config.general.clusters
    screen.say(f"{method}: {len(prepared.images):,} images, {clusters} clusters, in {run.path}")
    try:
        scores = meters.watch(experiment.steps(prepared, run), experiment.plan(prepared, run))
    except KeyboardInterrupt:
        _stop(f"Interrupted; go on with: fedmcc resume {quote(str(run.path))}", 130)
    screen.show_scores(scores, method)
    screen.say(f"The run is in {run.path}.")


def _method(loaded: "Config") -> str:
    from fedmcc.config import name_of

    return name_of("method", loaded.method)


def _stop(sentence: str, code: int) -> NoReturn:
    from fedmcc import screen

    screen.fail(sentence)
    raise typer.Exit(code)
