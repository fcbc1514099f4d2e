"""The paper's figures of a run, as files for a publication: SVG and PNG."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from fedmcc.errors import InputError
from fedmcc.report.build import located
from fedmcc.report.charts import LABELLED, shortened, stages
from fedmcc.report.clusters import class_colours, describe
from fedmcc.report.palette import FIRST, NOTHING
from fedmcc.report.run_facts import Assigned, Facts, read
from fedmcc.storage.atomic_files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

KINDS = ("svg", "png")
INCHES = {"wide": (6.0, 3.4), "square": (5.0, 5.0)}
DOTS = 200  # per inch, of the PNG files
MOST_NAMES = 20  # in a legend
MOST_ACROSS, MOST_DOWN = 40, 20  # names along the axes of a figure
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmcc",
    "font.size": 9.0,
    "axes.spines.top": False,
}
LOOK |= {"axes.spines.right": False, "legend.frameon": False}
POINTS: dict[str, Any] = {"marker": "o", "markersize": 2.5}
LINE = 75  # letters of a legend below a figure
DISC, ROOM = 13.4, 120  # points: the widest disc, and the height that discs above one another have
TICK = 16  # letters of a name along an axis

Draw = Callable[["Axes"], None]
Points = Float32[np.ndarray, "m 2"]


class Written(NamedTuple):
    """The figures that were drawn, and why others were not."""

    names: list[str]
    complaint: str | None = None


def write_figures(path: Path, folder: Path) -> Written:
    """Each figure for which the run has what it takes."""
    _refuse_without_matplotlib()
    facts = read(path)
    drawings: dict[str, tuple[str, Draw | None]] = {
        "accuracy": ("wide", _accuracy(facts)),
        "loss": ("wide", _loss(facts)),
        "holdings": ("wide", _holdings(facts)),
    }
    complaint = None
    try:
        drawings |= {name: ("square", draw) for name, draw in _maps(facts).items()}
    except (InputError, OSError, ArithmeticError) as error:  # the images are not here: the rest needs none
        complaint = f"The figures tsne-clusters and tsne-classes cannot be drawn. {error}"
    made = {name: (shape, draw) for name, (shape, draw) in drawings.items() if draw is not None}
    if complaint and not made:
        raise InputError(complaint)
    for name, (shape, draw) in made.items():
        for kind in KINDS:
            write_output(folder / f"{name}.{kind}", _rendered(draw, shape, kind))
    return Written(list(made), complaint)


def _refuse_without_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("Figures need matplotlib: install it with `pip install fedmcc[figures]`.") from None


def _rendered(draw: Draw, shape: str, kind: str) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(LOOK):
        figure = Figure(figsize=INCHES[shape], layout="constrained")
        draw(figure.add_subplot())
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(buffer, format=kind, dpi=DOTS, metadata=metadata)
        return buffer.getvalue()


def _accuracy(facts: Facts) -> Draw | None:
    """ACC, NMI and ARI per round, or what can be said without labels."""
    keys = [key for key in LABELLED if any(key in row for row in facts.rows)]
    names: dict[str, str] = {key: LABELLED[key] for key in keys} or {"confidence": "confidence"}
    if not any(key in row for key in names for row in facts.rows):
        return None

    def draw(axes: "Axes") -> None:
        for colour, (key, name) in zip(FIRST, names.items(), strict=False):
            points = [(number, row[key]) for number, row in enumerate(facts.rows, 1) if key in row]
            axes.plot(*zip(*points, strict=True), color=colour, label=name, **POINTS)
        axes.set(xlabel="round", ylabel="score", ylim=(0, 1))
        axes.legend()
        _mark_stages(axes, facts)

    return draw


def _loss(facts: Facts) -> Draw | None:
    if all(row.get("loss") is None for row in facts.rows):
        return None

    def draw(axes: "Axes") -> None:
        for colour, mark in zip(FIRST * len(facts.rows), stages(facts.rows), strict=False):
            own = enumerate(facts.rows[mark.first - 1 : mark.last], mark.first)
            points = [(number, row["loss"]) for number, row in own if row.get("loss") is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=shortened(mark.name), **POINTS)
        axes.set(xlabel="round", ylabel="loss")
        axes.legend()
        _mark_stages(axes, facts)

    return draw


def _mark_stages(axes: "Axes", facts: Facts) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, len(facts.rows) + 0.5)
    for mark in stages(facts.rows)[1:]:
        axes.axvline(mark.first - 0.5, color=NOTHING, linestyle=":", linewidth=0.8)


def _holdings(facts: Facts) -> Draw | None:
    """Discs whose area is the number of images, as in the picture of `fedmcc partition`."""
    shares = facts.shares
    if shares is None or shares.holdings is None or len(shares.clients) < 2:
        return None
    counts = shares.holdings

    def draw(axes: "Axes") -> None:
        rows, columns = np.nonzero(counts)
        held = counts[rows, columns]
        largest = min(DISC, ROOM / len(counts)) ** 2
        axes.scatter(columns, rows, s=largest * held / held.max(), color=FIRST[0])
        _name_ticks(axes.xaxis, shares.classes, MOST_ACROSS)
        _name_ticks(axes.yaxis, shares.clients, MOST_DOWN)
        axes.set(xlabel="class", ylabel="client", ylim=(len(shares.clients) - 0.5, -0.5))

    return draw


def _name_ticks(axis: "Axis", names: Sequence[str], most: int) -> None:
    """Names along an axis: long ones cut and, where they would touch, upright; of too many only some."""
    from matplotlib.axis import XAxis

    shown = range(0, len(names), max(1, -(-len(names) // most)))
    axis.set_ticks(shown, [shortened(names[place], TICK) for place in shown])
    longest = max((len(shortened(name, TICK)) for name in names), default=0)
    if isinstance(axis, XAxis) and longest * len(shown) > LINE:
        axis.set_tick_params(rotation=90)


def _maps(facts: Facts) -> dict[str, Draw]:
    """t-SNE coloured by cluster and, with labels, by class."""
    assigned, seen = located(facts)
    clusters = describe(assigned, facts.config.get("clusters") or 0)
    numbers = sorted(clusters, key=lambda cluster: cluster.number)
    names, colours = [str(cluster.number) for cluster in numbers], [cluster.colour for cluster in numbers]
    found = {"tsne-clusters": _scatter(seen.points, assigned.clusters[seen.rows], names, colours)}
    if assigned.labels is not None:
        own = _named(assigned), class_colours(clusters, len(assigned.classes))
        found["tsne-classes"] = _scatter(seen.points, assigned.labels[seen.rows], *own)
    return found


def _named(assigned: Assigned) -> list[str]:
    return [shortened(name) for name in assigned.classes]


def _scatter(
    points: Points, groups: Int64[np.ndarray, " m"], names: Sequence[str], colours: Sequence[str]
) -> Draw:
    def draw(axes: "Axes") -> None:
        for group, (name, colour) in enumerate(zip(names, colours, strict=True)):
            own = points[groups == group]
            axes.scatter(own[:, 0], own[:, 1], s=4, color=colour, linewidths=0, label=name)
        bare = points[groups < 0]
        axes.scatter(bare[:, 0], bare[:, 1], s=4, color=NOTHING, linewidths=0)
        axes.set_aspect("equal")
        axes.axis("off")
        if len(names) <= MOST_NAMES:
            columns = max(1, min(5, LINE // (max(map(len, names), default=0) + 6)))
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, markerscale=3)

    return draw
