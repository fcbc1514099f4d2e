"""Charts of rounds as plotly reads them; `var(--name)` stands for a colour of the page's theme."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from fedmcc.runs.directory import Row

Chart = dict[str, Any]

LINES = tuple(f"var(--line-{number})" for number in range(1, 6))
WIDE, NARROW = 280, 180  # pixels between the axes of a chart, of two or of three in a row, where it is tight
LETTER = 6  # pixels, of a stage's name
LABELLED = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "kmeans_acc": "k-means ACC"}
LABEL_FREE = {"confidence": "confidence", "balance": "balance", "silhouette": "silhouette"}
FEATURES = {"alignment": "alignment", "uniformity": "uniformity"}
MEGABYTE = 1e6
MOST_TICKS = 30  # that are told apart on an axis 400 pixels long


class Stage(NamedTuple):
    """Rounds that belong together: the first and the last, counted over the whole run from 1."""

    name: str
    first: int
    last: int

    @property
    def rounds(self) -> int:
        """How many."""
        return self.last - self.first + 1


def stages(rows: Sequence[Row]) -> list[Stage]:
    """The stages of a run, in order."""
    found, first = [], 1
    for name, own in groupby(rows, key=lambda row: str(row["stage"])):
        last = first + len(list(own)) - 1
        found.append(Stage(name, first, last))
        first = last + 1
    return found


def curves(rows: Sequence[Row]) -> dict[str, Chart]:
    """Loss and scores per round, each chart only where it has a line to show."""
    marks = stages(rows)
    charts = {
        "loss": chart(_losses(rows, marks), marks, "loss"),
        "scores": chart(_lines(rows, LABELLED), marks, "score", [0, 1.02]),
        "label-free": chart(_lines(rows, LABEL_FREE), marks, "score"),
        "features": chart(_lines(rows, FEATURES), marks, "score"),
        "epsilon": chart(_lines(rows, {"epsilon": "ε spent"}), marks, "ε"),
    }
    return {name: made for name, made in charts.items() if _rounds(made) > 1}


def _rounds(made: Chart) -> int:
    """How many have a point, in whichever line."""
    return len({number for line in made["data"] for number in line["x"]})


def chart(
    data: Iterable[Chart],
    marks: Sequence[Stage],
    title: str,
    extent: Sequence[float | int] | None = None,
    width: int = WIDE,
) -> Chart:
    """Lines over the rounds of a run, with a mark where a stage begins."""
    total = max((mark.last for mark in marks), default=1)
    x_axis: Chart = {"title": {"text": "round"}, "range": [0.5, total + 0.5], "tickformat": "d"}
    if total <= 10:
        x_axis["dtick"] = 1
    y_axis: Chart = {"title": {"text": title}} | ({} if extent is None else {"range": list(extent)})
    layout = {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "x unified", **_marked(marks, width / total)}
    return {"data": list(data), "layout": layout}


def _marked(marks: Sequence[Stage], pixels: float) -> Chart:
    """A dotted line where a stage begins, and its name above; a round has so many pixels."""
    if len(marks) < 2:
        return {}
    line = {"color": "var(--mark)", "width": 1, "dash": "dot"}
    across = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    shapes = [across | {"x0": mark.first - 0.5, "x1": mark.first - 0.5} for mark in marks[1:]]
    text = {"yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    look = {"font": {"size": 11, "color": "var(--muted)"}}
    names = [
        text | look | {"x": mark.first - 0.5, "text": written, "hovertext": escape(mark.name)}
        for mark in marks
        if (written := _fitting(mark.name, mark.rounds * pixels))
    ]
    return {"shapes": shapes, "annotations": names}


def _fitting(name: str, pixels: float) -> str:
    """The name, or dots that stand for it, or nothing, as there is room."""
    fits = [text for text in (shortened(name), "…") if LETTER * (len(text) + 1) <= pixels]
    return escape(fits[0]) if fits else ""


def _losses(rows: Sequence[Row], marks: Sequence[Stage]) -> list[Chart]:
    """A line per stage: losses of different stages do not compare."""
    found: list[Chart] = []
    for mark in marks:
        own = rows[mark.first - 1 : mark.last]
        points = [
            (mark.first + place, row["loss"]) for place, row in enumerate(own) if row.get("loss") is not None
        ]
        if points:
            found.append(_line(points, plain(mark.name), LINES[len(found) % len(LINES)]))
    return found


def _lines(rows: Sequence[Row], names: Mapping[str, str]) -> list[Chart]:
    found = []
    for place, (key, name) in enumerate(names.items()):
        points = [(number, row[key]) for number, row in enumerate(rows, 1) if row.get(key) is not None]
        if points:
            found.append(_line(points, name, LINES[place % len(LINES)]))
    return found


def _line(points: Sequence[tuple[int, float | int]], name: str, colour: str) -> Chart:
    x, y = zip(*points, strict=True)
    mode = "lines" if len(points) > 40 else "lines+markers"
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": list(x),
        "y": [round(float(value), 5) for value in y],
        "line": {"color": colour, "width": 2, "shape": "linear"},
        "marker": {"color": colour, "size": 5},
    }


def traffic(rows: Sequence[Row], federated: bool) -> dict[str, Chart]:
    """Megabytes, seconds and participants of each round."""
    down, up = ([row.get(key, 0) / MEGABYTE for row in rows] for key in ("bytes_down", "bytes_up"))
    found = {
        "bytes": ("MB", [bars("to clients", down, LINES[0]), bars("from clients", up, LINES[1])]),
        "seconds": ("seconds", [bars("seconds", [row["seconds"] for row in rows], LINES[2])]),
    }
    if federated:
        kinds = (
            ("took part", "participants", LINES[0]),
            ("refused", "refused", LINES[3]),
            ("dropped", "dropped", LINES[4]),
        )
        counted = [bars(name, [len(row.get(key, ())) for row in rows], colour) for name, key, colour in kinds]
        found["participants"] = ("clients", [own for own in counted if any(own["y"])])
    marks, stacked = stages(rows), {"barmode": "stack", "bargap": 0.25}
    charts = {key: chart(data, marks, title, width=NARROW) for key, (title, data) in found.items()}
    return {key: made | {"layout": made["layout"] | stacked} for key, made in charts.items()}


def bars(name: str, heights: Sequence[float | int], colour: str) -> Chart:
    """A bar per round."""
    return {
        "type": "bar",
        "name": name,
        "x": list(range(1, len(heights) + 1)),
        "y": [round(float(height), 4) for height in heights],
        "marker": {"color": colour},
    }


def named_axis(names: Sequence[str]) -> Chart:
    """An axis with a place for each name, so that cut ones do not fall together; of many some are shown."""
    every = -(-len(names) // MOST_TICKS)
    shown = range(0, len(names), every or 1)
    return {
        "type": "linear",
        "tickvals": list(shown),
        "ticktext": [plain(names[place]) for place in shown],
        "zeroline": False,
    }


def plain(text: str) -> str:
    """Names that people chose, not to be read as markup; long ones cut."""
    return escape(shortened(text))


def shortened(text: str, longest: int = 24) -> str:
    """Cut in the middle: names that begin alike mostly differ at their end."""
    if len(text) <= longest:
        return text
    return f"{text[: (longest - 1) // 2]}…{text[-(longest // 2) :]}"
