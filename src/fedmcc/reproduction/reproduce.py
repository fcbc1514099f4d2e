"""From a request to a table: all cells, several at a time, and the table anew after each of them."""

from collections.abc import Iterator
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.reproduction.cell_workers import Word, run_cells
from fedmcc.reproduction.cells import PLAN, Cell, Request, cells, settle
from fedmcc.reproduction.render import write_table
from fedmcc.reproduction.results import collect
from fedmcc.reproduction.run_cell import Ended
from fedmcc.storage.atomic_files import locked


class Outcome(NamedTuple):
    """What became of the cells: reasons by the name of each that failed."""

    failures: dict[str, str]


def reproduce(request: Request, planned: list[Cell]) -> Iterator[Word | Outcome]:
    """Do what is left of a table; yields what happens, and at last what failed."""
    settle(request, planned)
    with locked(request.out / PLAN):
        failures = {cell.name: fault for cell in planned if (fault := cell.fault)}
        _write(request, planned, failures)
        for cell in (cell for cell in planned if cell.name in failures):
            yield from (Word(cell, None), Word(cell, Ended(failures[cell.name])))
        left = [cell for cell in planned if not cell.done and cell.name not in failures]
        for word in run_cells(left, request.jobs):
            if isinstance(word.news, Ended):
                if word.news.reason:
                    failures[word.cell.name] = word.news.reason
                _write(request, planned, failures)
            yield word
        yield Outcome(failures)


def plan(request: Request) -> list[Cell]:
    """The cells of a request."""
    planned = cells(request)
    if not planned:
        raise InputError(f"{request.table.key} runs nothing at scale {request.scale}: choose another scale.")
    return planned


def _write(request: Request, planned: list[Cell], failures: dict[str, str]) -> None:
    results = collect(request.table, planned, failures)
    figure = ""
    if request.table.kind != "table":
        from fedmcc.reproduction.figures import draw

        figure = draw(request, [cell for cell in planned if not cell.fault])
    write_table(request, planned, results, figure)
