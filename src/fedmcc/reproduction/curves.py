"""Scores over rounds: the points of the figure, and its lines."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedmcc.reproduction.captions import column_name
from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.table_spec import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADINGS = ("column", "curve", "seed", "stage", "round", "score")


class Point(NamedTuple):
    """A score of a round; rounds are counted over all stages."""

    column: str
    curve: str
    seed: int
    stage: str
    round: int
    score: float


def read_points(table: Table, cells: Sequence[Cell]) -> list[Point]:
    """The points of all rounds that cells have finished."""
    points = []
    for cell in cells:
        for number, row in enumerate(cell.run.rows(), 1):
            for key, name in table.rows[cell.row].curves.items():
                if key in row:
                    column = column_name(table.columns[cell.column], cells)
                    points.append(Point(column, name, cell.seed, row["stage"], number, row[key]))
    return points


def draw(figure: "Figure", points: Sequence[Point]) -> None:
    """Draw a panel per column and a line per curve: the mean over seeds, with their range."""
    columns = list(dict.fromkeys(point.column for point in points))
    names = list(dict.fromkeys(point.curve for point in points))
    figure.set_size_inches(5 * len(columns), 4)
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for number, (column, axes) in enumerate(zip(columns, panels, strict=True)):
        for index, name in enumerate(names):
            shown = [point for point in points if (point.column, point.curve) == (column, name)]
            _draw_line(axes, shown, name, f"C{index}")
        axes.set(title=column, xlabel="round", ylabel="" if number else "accuracy, %")
    figure.axes[0].legend(frameon=False, fontsize="small")


def _draw_line(axes: "Axes", points: Sequence[Point], name: str, colour: str) -> None:
    by_round: dict[int, list[float]] = defaultdict(list)
    for point in points:
        by_round[point.round].append(100 * point.score)
    rounds = sorted(by_round)
    means = [statistics.fmean(by_round[number]) for number in rounds]
    axes.plot(rounds, means, color=colour, label=name, marker="." if len(rounds) < 30 else "")
    if any(len(values) > 1 for values in by_round.values()):
        low, high = ([limit(by_round[number]) for number in rounds] for limit in (min, max))
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
