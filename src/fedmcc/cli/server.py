"""The command of a federation's server: server start."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import app, command
from fedmcc.cli.federation import Folder
from fedmcc.cli.run import method_name

if TYPE_CHECKING:
    from fedmcc.config import Config
    from fedmcc.deployment.server.launch import RunRequest
    from fedmcc.deployment.setup.layout import OperatorFolder

server = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run the server of a federation.")
app.add_typer(server, name="server")


@partial(command, group=server)
def start(
    folder: Folder,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file.")],
    run: Annotated[Path | None, typer.Option(help="The run directory, new or begun [DIR/runs/…].")] = None,
    min_sites: Annotated[int, typer.Option(help="Sites that a round can do with.")] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for all sites at the start.")] = 3600.0,
    round_timeout: Annotated[float, typer.Option(help="Seconds that a site has for a round.")] = 3600.0,
    proxy: Annotated[bool, typer.Option(help="Stand behind nginx; without it: this machine alone.")] = True,
) -> None:
    """Start the server and its run, or go on with it; Ctrl-C stops both."""
    from fedmcc import config
    from fedmcc.deployment.server.launch import RunRequest, choose_run, refuse_impossible, resolve_resumed
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    chosen = choose_run(operator, recipe, run)
    if chosen.finished:
        output.say(f"The run in {chosen.path} is complete: --run begins another.")
        return
    loaded = resolve_resumed(chosen, config.load(recipe))
    order = RunRequest(config.dump(loaded), chosen.path, min_sites, wait, round_timeout)
    refuse_impossible(order, operator.read_spec())
    if complaint := create.expiry_warning(operator):
        output.warn(complaint)
    _serve(operator, loaded, order, proxy)


def _serve(operator: "OperatorFolder", loaded: "Config", order: "RunRequest", proxied: bool) -> None:
    from fedmcc.deployment.flower import processes
    from fedmcc.deployment.server import launch
    from fedmcc.runs.directory import Run
    from fedmcc.runs.resolve import stages
    from fedmcc.terminal import output, progress

    run, method = Run(order.run), method_name(loaded)
    rounds = {stage.name: stage.rounds for stage in stages(loaded)}
    with processes.sigterm_as_interrupt(), launch.serving(operator, proxied) as ready:
        output.say(ready.sentence)
        number = launch.start(ready, order)
        output.say(f"{method}: waiting for {', '.join(ready.nodes)}; the run is in {run.path}.")
        scores = progress.watch(launch.follow(ready, run, number, rounds), launch.plan(run, rounds))
    output.show_scores(scores, method)
    output.say(f"The run is in {run.path}.")
