"""The command of a federation's server: server start."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.federation import Folder
from fedmcc.cli.program import app, command
from fedmcc.cli.training import method_name

if TYPE_CHECKING:
    from fedmcc.config import Config
    from fedmcc.deployment.folders import Operator
    from fedmcc.deployment.server import Order

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
    from fedmcc import config, screen
    from fedmcc.deployment import founding
    from fedmcc.deployment.folders import Operator
    from fedmcc.deployment.server import Order, agreed, choose_run, refuse_impossible

    operator = Operator(folder.resolve())
    chosen = choose_run(operator, recipe, run)
    if chosen.finished:
        screen.say(f"The run in {chosen.path} is complete: --run begins another.")
        return
    loaded = agreed(chosen, config.load(recipe))
    order = Order(config.dump(loaded), chosen.path, min_sites, wait, round_timeout)
    refuse_impossible(order, operator.terms())
    if complaint := founding.expiry_complaint(operator):
        screen.warn(complaint)
    _serve(operator, loaded, order, proxy)


def _serve(operator: "Operator", loaded: "Config", order: "Order", proxied: bool) -> None:
    from fedmcc import meters, screen
    from fedmcc.construction import stages
    from fedmcc.deployment import processes, server
    from fedmcc.runs import Run

    run, method = Run(order.run), method_name(loaded)
    rounds = {stage.name: stage.rounds for stage in stages(loaded)}
    with processes.ended_by_signal(), server.serving(operator, proxied) as ready:
        screen.say(ready.sentence)
        number = server.start(ready, order)
        screen.say(f"{method}: waiting for {', '.join(ready.nodes)}; the run is in {run.path}.")
        scores = meters.watch(server.follow(ready, run, number, rounds), server.plan(run, rounds))
    screen.show_scores(scores, method)
    screen.say(f"The run is in {run.path}.")
