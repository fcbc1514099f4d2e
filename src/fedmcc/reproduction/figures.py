"""The paper's figures as SVG, drawn anew after each cell; their data beside them as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from fedmcc.errors import InputError
from fedmcc.reproduction import curves, tsne
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.storage.atomic_files import write_atomically

KINDS: dict[str, Any] = {"curves": curves, "tsne": tsne}  # HEADINGS, rows and draw of each


def draw(request: Request, cells: Sequence[Cell]) -> str:
    """Write figure.csv and figure.svg as far as they are; returns the SVG, or nothing when there is none."""
    figure = _figure()
    kind = KINDS[request.table.kind]
    data = kind.rows(request.table, cells)
    write_atomically(request.out / "figure.csv", _csv(kind.HEADINGS, data))
    if not data:
        return ""
    kind.draw(figure, request.table, data)
    svg = _svg(figure)
    write_atomically(request.out / "figure.svg", svg)
    return svg[svg.index("<svg") :]


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("Figures need matplotlib: install it with pip install 'fedmcc[figures]'.") from None
    return Figure(layout="constrained")


def _svg(figure: Any) -> str:
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedmcc", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _csv(headings: Sequence[str], data: Iterable[tuple[Any, ...]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(data)
    return written.getvalue()
