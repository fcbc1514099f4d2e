"""The command that runs the server of a federation: server start."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import app, command
from fedmcc.cli.federation import Folder
from fedmcc.cli.run import method_name
from fedmcc.deployment.server.request import JoinPolicy, RunRequest

if TYPE_CHECKING:
    from fedmcc.config import Config
    from fedmcc.deployment.setup.layout import OperatorFolder

server = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run the server of a federation.")
app.add_typer(server, name="server")

DEFAULTS = JoinPolicy()


@partial(command, group=server)
def start(
    folder: Folder,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file.")],
    run: Annotated[
        Path | None, typer.Option(help="The run directory, new or to be resumed [DIR/runs/RECIPE-001].")
    ] = None,
    min_sites: Annotated[int, typer.Option(help="Sites needed to start a round.")] = DEFAULTS.min_sites,
    wait: Annotated[float, typer.Option(help="Seconds to wait for all sites at the start.")] = DEFAULTS.wait,
    round_timeout: Annotated[
        float, typer.Option(help="Seconds that a site has for a round.")
    ] = DEFAULTS.round_timeout,
    proxy: Annotated[
        bool, typer.Option(help="Run nginx in front of Flower; without it, sites must be on this machine.")
    ] = True,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1 for /metrics in Prometheus' format [none].")
    ] = None,
) -> None:
    """Start the server and a run, or resume the run; Ctrl-C stops both.

    Example: fedmcc server start DIR recipe.toml
    """
    from fedmcc import config
    from fedmcc.deployment.server.metrics import serving_metrics
    from fedmcc.deployment.server.submit import check_request, choose_config, choose_run
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    chosen = choose_run(operator, recipe, run)
    if chosen.finished:
        output.say(f"The run in {chosen.path} is complete: start another one with --run.")
        return
    loaded = choose_config(chosen, config.load(recipe))
    policy = JoinPolicy(min_sites=min_sites, wait=wait, round_timeout=round_timeout)
    request = RunRequest(config.dump(loaded), chosen.path, policy)
    check_request(request, operator.read_spec())
    if warning := create.expiry_warning(operator):
        output.warn(warning)
    with serving_metrics(chosen, metrics_port):
        _serve(operator, loaded, request, proxy)


def _serve(operator: "OperatorFolder", loaded: "Config", request: RunRequest, proxied: bool) -> None:
    from fedmcc.deployment.flower import processes
    from fedmcc.deployment.server import launch, submit, supervision
    from fedmcc.runs.directory import Run
    from fedmcc.runs.resolve import stages
    from fedmcc.terminal import output, progress

    run, method = Run(request.run), method_name(loaded)
    rounds = {stage.name: stage.rounds for stage in stages(loaded)}
    with processes.sigterm_as_interrupt(), launch.running_server(operator, proxied) as server:
        output.say(server.description)
        run_id = submit.submit(server, request)
        output.say(f"{method}: waiting for {', '.join(server.nodes)}; the run is in {run.path}.")
        supervisor = supervision.Supervisor(server, output.say)
        events = supervisor.follow(request, run_id, rounds)
        scores = progress.watch(events, submit.plan(run, rounds))
    output.show_scores(scores, method)
    output.say(f"The run is in {run.path}.")
