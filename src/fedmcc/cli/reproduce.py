"""The command that does the paper's tables and figures again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import Settings, command, stop

if TYPE_CHECKING:
    from fedmcc.reproduction.cells import Cell, Request


@command
def reproduce(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Such as federated-iid; any other word lists them.")
    ],
    scale: Annotated[str, typer.Option(help="smoke (minutes), small (a laptop) or paper.")] = "small",
    seeds: Annotated[int, typer.Option(help="Runs of each cell.")] = 1,
    jobs: Annotated[int, typer.Option(help="Cells at a time.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Its folder [runs/reproduce-TABLE-SCALE].")] = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan alone.")] = False,
) -> None:
    """Do a table or a figure of the paper again.

    The same command goes on where it was stopped; finished cells are not run again.
    """
    from fedmcc.reproduction import cells, scales, table_spec

    loaded = table_spec.load_table(table)
    folder = out or Path("runs") / f"reproduce-{table}-{scale}"
    request = cells.Request(loaded, scales.checked_scale(scale), folder, seeds, jobs, tuple(settings or ()))
    planned = cells.plan_cells(request)
    if dry_run:
        from fedmcc.reproduction import cost

        cost.print_cost(request, planned)
    else:
        _run(request, planned)


def _run(request: "Request", planned: "list[Cell]") -> None:
    from fedmcc.reproduction import reproduce
    from fedmcc.reproduction.progress import TableProgress, display
    from fedmcc.terminal import output

    progress, failures = TableProgress(planned), {}
    output.say(f"{request.table.title}: {progress.summary}, in {request.out}")
    try:
        with display(progress):
            for event in reproduce.reproduce(request, planned):
                if isinstance(event, reproduce.Outcome):
                    failures = event.failures
                else:
                    progress.update(*event)
    except KeyboardInterrupt:
        stop("Interrupted; the same command goes on.", 130)
    output.say(f"The table is in {request.out / 'table.md'} and {request.out / 'table.html'}.")
    if failures:
        stop(f"{len(failures)} of {len(planned)} cells failed: {next(iter(failures.values()))}", 1)
