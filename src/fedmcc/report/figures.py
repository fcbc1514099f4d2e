"""The paper's figures of one run, as SVG and PNG files for a publication."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from fedmcc.errors import InputError
from fedmcc.report.charts import LABELLED_SCORES, find_stages, shortened
from fedmcc.report.clusters import class_colours, describe
from fedmcc.report.content import load_or_compute_map
from fedmcc.report.palette import BASE_COLOURS, UNLABELLED_COLOUR
from fedmcc.report.plotting import file_content, new_figure, png_mark, require_matplotlib
from fedmcc.report.run_facts import Facts, read_run
from fedmcc.storage.atomic_files import require_own, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = ("svg", "png")
SOFTWARE = "fedmcc plot"
MARKS = {"svg": f"<dc:source>{SOFTWARE}</dc:source>".encode(), "png": png_mark(SOFTWARE)}
MAPS = ("tsne-clusters", "tsne-classes")
NO_LABELS = "The images have no labels."
WIDE, SQUARE = (6.0, 3.4), (5.0, 5.0)  # inches
DPI = 200  # of PNG files
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
MARKER: dict[str, Any] = {"marker": "o", "markersize": 2.5}
MAX_LEGEND_NAMES = 20
MAX_X_NAMES, MAX_Y_NAMES = 40, 20  # tick labels along the axes
MAX_TICK_LETTERS = 16
LETTERS_ACROSS = 75  # that fit into the width of a figure
MAX_DISC, DISCS_HEIGHT = 13.4, 120  # points: diameter of the largest disc, height shared by all rows

Draw = Callable[["Axes"], None]
Size = tuple[float, float]
Points = Float32[np.ndarray, "m 2"]


class WrittenFigures(NamedTuple):
    """The names of the figures that were drawn, and why others were not."""

    names: list[str]
    missing: dict[str, str]  # a sentence for each figure that is not drawn

    def reasons(self) -> list[str]:
        """A message for each reason, with the figures that it concerns."""
        figures: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            figures.setdefault(reason, []).append(name)
        return [f"{_listed(names)} cannot be drawn. {reason}" for reason, names in figures.items()]


def write_figures(path: Path, folder: Path, force: bool = False) -> WrittenFigures:
    """Write every figure for which the run has data; files that `plot` did not write need `force`."""
    require_matplotlib()
    facts = read_run(path)
    figures = _curves(facts) | _maps(facts)
    missing = {name: draw for name, draw in figures.items() if isinstance(draw, str)}
    drawable = {name: draw for name, draw in figures.items() if not isinstance(draw, str)}
    if not drawable:
        raise InputError(f"No figure of {path} can be drawn. {missing[MAPS[0]]}")
    for name, kind in product(drawable, FORMATS):
        require_own(folder / f"{name}.{kind}", [MARKS[kind]], force)
    for name, kind in product(drawable, FORMATS):
        size = SQUARE if name in MAPS else WIDE
        write_output(folder / f"{name}.{kind}", _drawn(drawable[name], size, kind))
    return WrittenFigures(list(drawable), missing)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"The figures {', '.join(others)} and {last}" if others else f"The figure {last}"


def _drawn(draw: Draw, size: Size, kind: str) -> bytes:
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(size)
        draw(figure.add_subplot())
        return file_content(figure, kind, DPI, SOFTWARE)


def _curves(facts: Facts) -> dict[str, Draw | str]:
    """The figures that need no images, or the reason why they cannot be drawn."""
    figures: dict[str, Draw | str] = {
        "accuracy": _accuracy(facts),
        "loss": _loss(facts),
        "holdings": _holdings(facts),
    }
    if figures["accuracy"] == NO_LABELS:
        figures["confidence"] = _scores(facts, {"confidence": "confidence"})
    return figures


def _accuracy(facts: Facts) -> Draw | str:
    """ACC, NMI and ARI per round."""
    names = {key: name for key, name in LABELLED_SCORES.items() if any(key in row for row in facts.rows)}
    if names:
        return _scores(facts, names)
    scored = any("confidence" in row for row in facts.rows)
    return NO_LABELS if scored else "The run has no round with scores."


def _scores(facts: Facts, names: dict[str, str]) -> Draw:
    def draw(axes: "Axes") -> None:
        for colour, (key, name) in zip(BASE_COLOURS, names.items(), strict=False):
            points = [(number, row[key]) for number, row in enumerate(facts.rows, 1) if key in row]
            axes.plot(*zip(*points, strict=True), color=colour, label=name, **MARKER)
        axes.set(xlabel="round", ylabel="score", ylim=(0, 1))
        axes.legend()
        _mark_stages(axes, facts)

    return draw


def _loss(facts: Facts) -> Draw | str:
    if all(row.get("loss") is None for row in facts.rows):
        return "The run has no round with a loss."

    def draw(axes: "Axes") -> None:
        colours = BASE_COLOURS * len(facts.rows)
        for colour, stage in zip(colours, find_stages(facts.rows), strict=False):
            numbered = enumerate(facts.rows[stage.first - 1 : stage.last], stage.first)
            points = [(number, row["loss"]) for number, row in numbered if row.get("loss") is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=shortened(stage.name), **MARKER)
        axes.set(xlabel="round", ylabel="loss")
        axes.legend()
        _mark_stages(axes, facts)

    return draw


def _mark_stages(axes: "Axes", facts: Facts) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, len(facts.rows) + 0.5)
    for stage in find_stages(facts.rows)[1:]:
        axes.axvline(stage.first - 0.5, color=UNLABELLED_COLOUR, linestyle=":", linewidth=0.8)


def _holdings(facts: Facts) -> Draw | str:
    """Images per client and class as discs whose area is the count, as `fedmcc partition` draws them."""
    partition = facts.partition
    if partition is None:
        return "The run has no file partition.npz."
    if len(partition.clients) < 2:
        return "The run has one client."
    if partition.holdings is None:
        return NO_LABELS
    counts = partition.holdings

    def draw(axes: "Axes") -> None:
        rows, columns = np.nonzero(counts)
        sizes = counts[rows, columns]
        max_area = min(MAX_DISC, DISCS_HEIGHT / len(counts)) ** 2
        axes.scatter(columns, rows, s=max_area * sizes / sizes.max(), color=BASE_COLOURS[0])
        _name_ticks(axes.xaxis, partition.classes, MAX_X_NAMES)
        _name_ticks(axes.yaxis, partition.clients, MAX_Y_NAMES)
        axes.set(xlabel="class", ylabel="client", ylim=(len(partition.clients) - 0.5, -0.5))

    return draw


def _name_ticks(axis: "Axis", names: Sequence[str], max_names: int) -> None:
    """Label evenly spaced ticks with shortened names; upright on the x axis if they would overlap."""
    from matplotlib.axis import XAxis

    labelled = range(0, len(names), max(1, -(-len(names) // max_names)))
    axis.set_ticks(labelled, [shortened(names[index], MAX_TICK_LETTERS) for index in labelled])
    longest = max((len(shortened(name, MAX_TICK_LETTERS)) for name in names), default=0)
    if isinstance(axis, XAxis) and longest * len(labelled) > LETTERS_ACROSS:
        axis.set_tick_params(rotation=90)


def _maps(facts: Facts) -> dict[str, Draw | str]:
    """The figures of the t-SNE, or the reason why they cannot be drawn."""
    try:
        return dict(zip(MAPS, _draw_maps(facts), strict=True))
    except (InputError, OSError, ArithmeticError) as error:
        return dict.fromkeys(MAPS, str(error))


def _draw_maps(facts: Facts) -> tuple[Draw, Draw | str]:
    """t-SNE coloured by cluster and, with labels, by class."""
    assignments, image_map = load_or_compute_map(facts)
    clusters = describe(assignments, facts.clusters)
    numbered = sorted(clusters, key=lambda cluster: cluster.number)
    names, colours = [str(cluster.number) for cluster in numbered], [cluster.colour for cluster in numbered]
    points, rows = image_map.points, image_map.rows
    by_cluster = _scatter(points, assignments.clusters[rows], names, colours)
    if assignments.labels is None:
        return by_cluster, NO_LABELS
    names = [shortened(name) for name in assignments.classes]
    colours = class_colours(clusters, len(names))
    return by_cluster, _scatter(points, assignments.labels[rows], names, colours)


def _scatter(
    points: Points, groups: Int64[np.ndarray, " m"], names: Sequence[str], colours: Sequence[str]
) -> Draw:
    def draw(axes: "Axes") -> None:
        for group, (name, colour) in enumerate(zip(names, colours, strict=True)):
            members = points[groups == group]
            axes.scatter(members[:, 0], members[:, 1], s=4, color=colour, linewidths=0, label=name)
        unlabelled = points[groups < 0]
        axes.scatter(unlabelled[:, 0], unlabelled[:, 1], s=4, color=UNLABELLED_COLOUR, linewidths=0)
        axes.set_aspect("equal")
        axes.axis("off")
        if len(names) <= MAX_LEGEND_NAMES:
            columns = max(1, min(5, LETTERS_ACROSS // (max(map(len, names), default=0) + 6)))
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, markerscale=3)

    return draw
