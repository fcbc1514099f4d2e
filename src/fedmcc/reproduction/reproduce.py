"""Runs the cells of a table, several at a time, and rewrites the table after each of them."""

from collections.abc import Iterator
from typing import NamedTuple

from fedmcc.reproduction.cell_workers import CellEvent, run_cells
from fedmcc.reproduction.cells import PLAN_FILE, Cell, Request, selected, write_plan
from fedmcc.reproduction.render import write_table
from fedmcc.reproduction.results import collect
from fedmcc.reproduction.run_cell import Ended
from fedmcc.storage.atomic_files import locked


class Outcome(NamedTuple):
    """The reason for each failed cell, by its name."""

    failures: dict[str, str]


def reproduce(request: Request, cells: list[Cell]) -> Iterator[CellEvent | Outcome]:
    """Run the selected cells that are not done yet; yield events of these cells, then the outcome."""
    chosen = selected(request, cells)
    write_plan(request, chosen)
    with locked(request.out / PLAN_FILE):
        failures = {cell.name: error for cell in cells if (error := cell.error)}
        _write(request, cells, failures)
        for cell in (cell for cell in chosen if cell.name in failures):
            yield from (CellEvent(cell, None), CellEvent(cell, Ended(failures[cell.name])))
        left = [cell for cell in chosen if not cell.done and cell.name not in failures]
        for cell, event in run_cells(left, request.jobs):
            if isinstance(event, Ended):
                if event.reason:
                    failures[cell.name] = event.reason
                _write(request, cells, failures)
            yield CellEvent(cell, event)
        yield Outcome(failures)


def _write(request: Request, cells: list[Cell], failures: dict[str, str]) -> None:
    results = collect(request.table, cells, failures)
    figure = ""
    if request.table.kind != "table":
        from fedmcc.reproduction.figures import write_figure

        figure = write_figure(request, [cell for cell in cells if not cell.error])
    write_table(request, cells, results, figure)
