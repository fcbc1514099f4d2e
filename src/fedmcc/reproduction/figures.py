"""Draws the paper's figures as SVG, with their data as CSV; they are updated after each cell."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fedmcc.report.plotting import file_content, new_figure, require_matplotlib
from fedmcc.reproduction import curves, tsne
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.storage.atomic_files import write_atomically


class Kind(NamedTuple):
    """How the data of a figure are read and drawn."""

    headings: Sequence[str]
    read_points: Callable[..., list[Any]]
    draw: Callable[..., None]


KINDS = {
    "curves": Kind(curves.HEADINGS, curves.read_points, curves.draw),
    "tsne": Kind(tsne.HEADINGS, tsne.read_points, tsne.draw),
}


def write_figure(request: Request, cells: Sequence[Cell]) -> str:
    """Write figure.csv and figure.svg from the data so far; return the <svg> element, or an empty string."""
    require_matplotlib()
    kind = KINDS[request.table.kind]
    points = kind.read_points(request.table, cells)
    write_atomically(request.out / "figure.csv", _csv(kind.headings, points))
    if not points:
        return ""
    figure = new_figure()
    kind.draw(figure, points)
    svg = file_content(figure, "svg").decode()
    write_atomically(request.out / "figure.svg", svg)
    return svg[svg.index("<svg") :]


def _csv(headings: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return buffer.getvalue()
