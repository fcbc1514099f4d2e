"""The app that Flower runs at the server: it runs the rounds of one run and logs them."""

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmcc.deployment.flower.logs import set_up_logging
from fedmcc.deployment.server.coordinator import serve
from fedmcc.deployment.server.request import take_request
from fedmcc.errors import InputError
from fedmcc.runs.experiment import Scored

log = logging.getLogger(__name__)

server_app = ServerApp()  # a plain assignment: Flower parses this file before it imports it


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds that the run directory does not have yet."""
    set_up_logging()
    try:
        request = take_request(Path(os.environ["FLWR_HOME"]), context.run_config)
        for event in serve(grid, request):
            log.info(_line(event) if isinstance(event, Scored) else "The run is complete.")
    except (InputError, ArithmeticError) as error:
        log.error("%s", error)
        raise


def _line(event: Scored) -> str:
    """A round in the log: only the names of sites and numbers."""
    row = event.row
    if "skipped" in row:
        return f"{row['stage']} {row['round']}/{event.rounds}: skipped, {row['seconds']:.1f} s"
    names = ", ".join(row["sites"][str(client)] for client in row["participants"])
    loss = "" if row["loss"] is None else f", loss {row['loss']:.3f}"
    return f"{row['stage']} {row['round']}/{event.rounds}: {names}{loss}, {row['seconds']:.1f} s"
