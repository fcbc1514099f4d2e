"""The command of a federation's server: server start."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.federation import Folder
from fedmcc.cli.program import Settings, app, command
from fedmcc.cli.training import method_name

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
    settings: Settings = None,
) -> None:
    """Start the server and its run, or go on with it; Ctrl-C stops both."""
    from fedmcc import config, meters, screen
    from fedmcc.assembly import stages
    from fedmcc.deployment import founding, processes
    from fedmcc.deployment import server as deployed
    from fedmcc.deployment.folders import Operator

    operator = Operator(folder.resolve())
    loaded = config.load(recipe, settings or [])
    chosen = deployed.choose_run(operator, recipe, run)
    if complaint := founding.expiry_complaint(operator):
        screen.warn(complaint)
    order = deployed.Order(config.dump(loaded), chosen.path, min_sites, wait, round_timeout)
    rounds = {stage.name: stage.rounds for stage in stages(loaded)}
    with processes.ended_by_signal(), deployed.serving(operator) as ready:
        screen.say(ready.sentence)
        number = deployed.start(ready, order)
        screen.say(
            f"{method_name(loaded)}: waiting for {', '.join(ready.nodes)}; the run is in {chosen.path}."
        )
        scores = meters.watch(deployed.follow(ready, chosen, number, rounds), deployed.plan(chosen, rounds))
    screen.show_scores(scores, method_name(loaded))
    screen.say(f"The run is in {chosen.path}.")
