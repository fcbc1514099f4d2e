"""The command that reproduces the paper's tables and figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import Settings, command, stop

if TYPE_CHECKING:
    from fedmcc.reproduction.cells import Cell, Request


@command
def reproduce(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A name such as federated-iid; an unknown name lists all.")
    ],
    scale: Annotated[str, typer.Option(help="smoke (minutes), small (a laptop) or paper.")] = "small",
    seeds: Annotated[int, typer.Option(help="Runs per cell.")] = 1,
    jobs: Annotated[int, typer.Option(help="Cells to run in parallel.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to [runs/reproduce-TABLE-SCALE].")
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Run this row only, such as mcc; may be repeated.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="Run this column only, such as mnist; may be repeated."),
    ] = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost only.")] = False,
) -> None:
    """Reproduce a table or a figure of the paper.

    To resume, repeat the command; finished cells are not run again.

    Example: fedmcc reproduce federated-iid --scale small
    """
    from fedmcc.reproduction import cells, scales, table_spec

    loaded = table_spec.load_table(table)
    folder = out or Path("runs") / f"reproduce-{table}-{scale}"
    request = cells.Request(
        loaded,
        scales.checked_scale(scale),
        folder,
        seeds,
        jobs,
        tuple(settings or ()),
        tuple(rows or ()),
        tuple(columns or ()),
    )
    planned = cells.plan_cells(request)
    if dry_run:
        from fedmcc.reproduction import cost

        cost.print_cost(request, cells.selected(request, planned))
    else:
        _run(request, planned)


def _run(request: "Request", planned: "list[Cell]") -> None:
    from fedmcc.reproduction import reproduce
    from fedmcc.reproduction.cells import selected
    from fedmcc.reproduction.progress import TableProgress, display
    from fedmcc.terminal import output

    progress, failures = TableProgress(selected(request, planned)), {}
    output.say(f"{request.table.title}: {progress.summary}, in {request.out}")
    try:
        with display(progress):
            for event in reproduce.reproduce(request, planned):
                if isinstance(event, reproduce.Outcome):
                    failures = event.failures
                else:
                    progress.update(*event)
    except KeyboardInterrupt:
        stop("Interrupted; repeat the command to resume.", 130)
    output.say(f"The table is in {request.out / 'table.md'} and {request.out / 'table.html'}.")
    if failures:
        stop(f"{len(failures)} of {len(planned)} cells failed: {next(iter(failures.values()))}", 1)
