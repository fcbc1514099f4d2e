"""Scores over rounds: the data of the figure, and its lines."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedmcc.reproduction.captions import heading
from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.table_spec import Table

HEADINGS = ("column", "curve", "seed", "stage", "round", "score")


class Point(NamedTuple):
    """A score of a round; rounds are counted through all stages."""

    column: str
    curve: str
    seed: int
    stage: str
    round: int
    score: float


def rows(table: Table, cells: Sequence[Cell]) -> list[Point]:
    """Every point that there is so far."""
    points = []
    for cell in cells:
        for number, row in enumerate(cell.run.rows(), 1):
            for key, name in table.rows[cell.row].curves.items():
                if key in row:
                    column = heading(table.columns[cell.column], cells)
                    points.append(Point(column, name, cell.seed, row["stage"], number, row[key]))
    return points


def draw(figure: Any, table: Table, points: Sequence[Point]) -> None:
    """A panel per column, a line per curve: the mean over seeds, and their range."""
    panels = list(dict.fromkeys(point.column for point in points))
    names = list(dict.fromkeys(point.curve for point in points))
    figure.set_size_inches(5 * len(panels), 4)
    for place, axes in enumerate(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]):
        for index, name in enumerate(names):
            own = [point for point in points if (point.column, point.curve) == (panels[place], name)]
            _line(axes, own, name, f"C{index}")
        axes.set(title=panels[place], xlabel="round", ylabel="" if place else "accuracy, %")
    figure.axes[0].legend(frameon=False, fontsize="small")


def _line(axes: Any, points: Sequence[Point], name: str, colour: str) -> None:
    by_round: dict[int, list[float]] = defaultdict(list)
    for point in points:
        by_round[point.round].append(100 * point.score)
    rounds = sorted(by_round)
    style = {"color": colour, "label": name, "marker": "." if len(rounds) < 30 else ""}
    axes.plot(rounds, [statistics.fmean(by_round[number]) for number in rounds], **style)
    if any(len(values) > 1 for values in by_round.values()):
        low, high = ([edge(by_round[number]) for number in rounds] for edge in (min, max))
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
