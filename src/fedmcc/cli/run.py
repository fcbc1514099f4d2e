"""Commands that train: run, resume, demo."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedmcc.cli.app import Quiet, Recipe, RunFolder, Settings, command, stop

SIMULATION = "flower-simulation"
QUICK = ("data.limit=200", "method.rounds=1", "method.epochs=1", "engine.name=embedded")
MAX_NAMED_CLASSES = 5  # in the message that labels were found

if TYPE_CHECKING:
    from fedmcc.config import Config
    from fedmcc.runs.build import Experiment
    from fedmcc.runs.directory import Run
    from fedmcc.runs.pacing import Budget

Report = Annotated[bool, typer.Option("--report/--no-report", help="Write RUN/report.html at the end.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Record the rounds in RUN/tensorboard.")]


class Outputs(NamedTuple):
    """What a run writes in addition to its own files."""

    report: bool = True
    tensorboard: bool = False
    profile: bool = False


@command
def run(
    recipe: Recipe,
    settings: Settings = None,
    clusters: Annotated[
        str | None, typer.Option(help="Number of clusters, or auto [number of classes].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The new run directory [runs/RECIPE-001].")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine: embedded, pool or flower-simulation.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write RUN/profile.md: time spent per part.")
    ] = False,
    report: Report = True,
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
) -> None:
    """Train with a recipe, or on a folder of images.

    Example: fedmcc run PICTURES --clusters 10
    """
    from fedmcc.runs.directory import next_free

    name = recipe.resolve().stem
    settings = [*(settings or []), *([f"clusters={clusters}"] if clusters is not None else [])]
    _require_unused(out)
    if engine == SIMULATION:
        _refuse_for_simulation(profile=profile, tensorboard=tensorboard)
        _simulate(load_recipe(recipe, settings), out or next_free(Path("runs"), name), report)
        return
    loaded = load_recipe(recipe, [*settings, *([f"engine.name={engine}"] if engine else [])])
    _start(loaded, out, name, Outputs(report, tensorboard, profile))


@command
def resume(
    run: RunFolder, report: Report = True, tensorboard: TensorBoard = False, quiet: Quiet = False
) -> None:
    """Resume an interrupted run; the result is bit-identical.

    Example: fedmcc resume runs/PICTURES-001
    """
    from fedmcc.cli.cluster import REMAINING, complete
    from fedmcc.errors import InputError
    from fedmcc.runs import directory
    from fedmcc.terminal import output

    opened = directory.load_run(run)
    if opened.sites_file.exists() and not opened.simulated:
        raise InputError(f"{run} belongs to a federation: resume it with `fedmcc server start`.")
    from fedmcc import config  # loads torch, which takes seconds
    from fedmcc.runs.experiment import require_same_images

    loaded = config.load(opened.config_file)
    if (opened.path / REMAINING).exists():
        prepared = prepare(loaded)
        if opened.finished:
            require_same_images(prepared, opened)
        else:
            train(prepared, opened, Outputs(False, tensorboard))
        complete(opened, prepared, report)
    elif opened.finished:
        output.say(f"{run} is complete: nothing to resume.")
        output.show_scores(opened.read_json("scores.json"), method_name(loaded))
    elif opened.simulated:
        _refuse_for_simulation(tensorboard=tensorboard)
        _simulate(loaded, run, report)
    else:
        prepared, outputs = prepare(loaded), Outputs(report, tensorboard)
        train(prepared, opened, outputs)
        _report(prepared, opened, outputs)


@command
def demo(
    out: Annotated[Path | None, typer.Option(help="The new run directory [runs/demo-001].")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few images and rounds: it works, but the clusters are poor.")
    ] = False,
    report: Report = True,
    quiet: Quiet = False,
) -> None:
    """Cluster handwritten digits of five clients, in a few minutes.

    Example: fedmcc demo
    """
    from importlib.resources import as_file, files

    _require_unused(out)
    from fedmcc import config  # loads torch, which takes seconds

    with as_file(files("fedmcc.cli") / "demo.toml") as recipe:
        loaded = config.load(recipe, QUICK if quick else ())
    _start(loaded, out, "demo", Outputs(report))


def _require_unused(out: Path | None) -> None:
    from fedmcc.runs.directory import require_unused

    if out is not None:
        require_unused(out)


def load_recipe(recipe: Path, settings: Sequence[str] | None) -> "Config":
    """Load a TOML file, or the default configuration for a folder of images."""
    from fedmcc.cli.option_names import check_names
    from fedmcc.runs.directory import require_no_run
    from fedmcc.storage.toml_files import parse_toml, read_recipe

    require_no_run(recipe)
    table: dict[str, Any] = {"data": {"name": "folder", "root": str(recipe)}}
    text = None if recipe.is_dir() else read_recipe(recipe)
    if text is not None:
        table = parse_toml(text, str(recipe))
    if settings:
        check_names(table, settings)
    from fedmcc import config  # loads torch, which takes seconds

    if text is not None:
        return config.parse_text(text, str(recipe), settings or [])
    return config.parse(config.apply_settings(table, settings or []))


def prepare(loaded: "Config") -> "Experiment":
    """Load the images of a configuration, print what was found in their folder, and build the run."""
    from fedmcc.runs import build
    from fedmcc.terminal import output

    images = loaded.data.load()
    if skipped := images.skipped_message():
        output.warn(skipped)
    if images.classes and getattr(loaded.data, "labels", None) == "auto":
        names = ", ".join(images.classes[:MAX_NAMED_CLASSES])
        more = ", …" * (len(images.classes) > MAX_NAMED_CLASSES)
        output.say(
            f"The {len(images.classes)} subfolders ({names}{more}) are labels: they are used for scores and "
            "for the default number of clusters. To ignore them: --set data.labels=false"
        )
    return build.assemble(loaded, images)


def _start(loaded: "Config", out: Path | None, name: str, outputs: Outputs) -> None:
    from fedmcc.data.partition import holdings
    from fedmcc.runs import directory, experiment, profile
    from fedmcc.terminal import output

    _check(outputs)
    with profile.profiling(loaded) if outputs.profile else nullcontext() as clock:  # not of the report
        prepared = prepare(loaded)
        run = experiment.start_run(prepared, out or directory.next_free(Path("runs"), name))
        held = holdings(prepared.images, prepared.shards)
        output.show_holdings_briefly(held.clients, held.classes, held.counts.tolist())
        train(prepared, run, outputs)
        if clock is not None:
            profile.write_profile(run, clock)
            output.say(f"The profile is {run.path / 'profile.md'}.")
    _report(prepared, run, outputs)


def _refuse_for_simulation(**options: bool) -> None:
    """Raise InputError for options that Flower's simulation does not have: it trains in other processes."""
    from fedmcc.errors import InputError

    for option in (name for name, chosen in options.items() if chosen):
        raise InputError(
            f"--{option} does not work with Flower's simulation: omit it, or use another engine."
        )


def _simulate(loaded: "Config", path: Path, report: bool) -> None:
    from fedmcc.deployment import simulation
    from fedmcc.runs import directory
    from fedmcc.terminal import output, progress

    output.say(f"{method_name(loaded)} with Flower's simulation, in {path}")
    for row in simulation.simulate(loaded, path):
        output.say(f"{row['stage']} {row['round']}  {progress.row_summary(row)}")
    run = directory.load_run(path)
    output.show_scores(run.read_json("scores.json"), method_name(loaded))
    output.say(f"The run is in {path}.")
    if report:
        write_report(None, run)


def _check(outputs: Outputs) -> None:
    if outputs.tensorboard:
        from fedmcc.runs.tensorboard import require_tensorboard

        require_tensorboard()


def _report(prepared: "Experiment", run: "Run", outputs: Outputs) -> None:
    """Write the report, or print how to create it."""
    from shlex import quote

    from fedmcc.terminal import output

    if outputs.report:
        write_report(prepared, run)
    else:
        output.say(f"Create its report with: fedmcc report {quote(str(run.path))}")


def train(prepared: "Experiment", run: "Run", outputs: Outputs, budget: "Budget | None" = None) -> None:
    """Train, within the time of the budget if there is one, and print the scores."""
    from shlex import quote

    from fedmcc.runs import cluster_choice, experiment, pacing
    from fedmcc.runs.tensorboard import record_rounds
    from fedmcc.terminal import output, progress

    _check(outputs)
    _announce(prepared, run)
    plan, events = experiment.plan(prepared, run), pacing.steps_within(prepared, run, budget)
    if outputs.tensorboard:
        events = record_rounds(events, run.path / "tensorboard", len(run.committed_rows()))
    try:
        scores = progress.watch(events, plan)
    except KeyboardInterrupt:
        stop(f"Interrupted; resume with: fedmcc resume {quote(str(run.path))}", 130)
    for sentence in cluster_choice.sentences(run):
        output.say(sentence)
    output.show_scores(scores, method_name(prepared.config))
    output.say(f"The run is in {run.path}.")


def _announce(prepared: "Experiment", run: "Run") -> None:
    from fedmcc.methods.choosing import chooses
    from fedmcc.terminal import output

    config, count = prepared.config, len(prepared.images)
    most = "up to " if chooses(config.clustering) else ""
    clusters = f"{most}{config.general.clusters} clusters"
    output.say(f"{method_name(config)}: {count:,} images, {clusters}, in {run.path}")


def write_report(prepared: "Experiment | None", run: "Run") -> None:
    """Write the report of the run; a failure is a warning, since the run itself is complete."""
    from fedmcc.report import build
    from fedmcc.terminal import output

    try:
        output.say(f"The report is {build.write_report([run.path], experiment=prepared)}.")
    except Exception as error:  # after hours of training, no error of the report ends the command
        output.warn(f"The report could not be written: {type(error).__name__}: {error}")


def method_name(loaded: "Config") -> str:
    """The registered name of the method."""
    from fedmcc.config import name_of

    return name_of("method", loaded.method)
