"""Charts of the rounds as plotly reads them; page.js replaces `var(--name)` by a colour of the theme."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from fedmcc.runs.directory import Row

Chart = dict[str, Any]

LINE_COLOURS = tuple(f"var(--line-{number})" for number in range(1, 6))
CHART_WIDTH = 280  # pixels of the plot area on the narrowest screens, two charts in a row
NARROW_CHART_WIDTH = 180  # three charts in a row
LETTER_WIDTH = 6  # pixels
MAX_TICKS = 30  # names on an axis: more would overlap on 400 pixels
MEGABYTE = 1e6
LABELLED_SCORES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "kmeans_acc": "k-means ACC"}
LABEL_FREE_SCORES = {"confidence": "confidence", "balance": "balance", "silhouette": "silhouette"}
FEATURE_SCORES = {"alignment": "alignment", "uniformity": "uniformity"}


class Stage(NamedTuple):
    """The first and the last round of a stage, counted over the whole run from 1."""

    name: str
    first: int
    last: int

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.last - self.first + 1


def find_stages(rows: Sequence[Row]) -> list[Stage]:
    """The stages of a run, in order."""
    stages, first = [], 1
    for name, group in groupby(rows, key=lambda row: str(row["stage"])):
        last = first + len(list(group)) - 1
        stages.append(Stage(name, first, last))
        first = last + 1
    return stages


def round_charts(rows: Sequence[Row]) -> dict[str, Chart]:
    """Loss, scores and privacy per round; charts of fewer than two rounds are left out."""
    stages = find_stages(rows)
    charts = {
        "loss": line_chart(_loss_lines(rows, stages), stages, "loss"),
        "scores": line_chart(_score_lines(rows, LABELLED_SCORES), stages, "score", [0, 1.02]),
        "label-free": line_chart(_score_lines(rows, LABEL_FREE_SCORES), stages, "score"),
        "features": line_chart(_score_lines(rows, FEATURE_SCORES), stages, "score"),
        "epsilon": line_chart(_score_lines(rows, {"epsilon": "ε spent"}), stages, "ε"),
    }
    return {name: chart for name, chart in charts.items() if _count_rounds(chart) > 1}


def _count_rounds(chart: Chart) -> int:
    """Number of rounds for which at least one line has a point."""
    return len({number for line in chart["data"] for number in line["x"]})


def line_chart(
    data: Iterable[Chart],
    stages: Sequence[Stage],
    title: str,
    y_range: Sequence[float | int] | None = None,
    width: int = CHART_WIDTH,
) -> Chart:
    """Traces over the rounds of a run, with a dotted line where a stage begins."""
    total = max((stage.last for stage in stages), default=1)
    x_axis: Chart = {"title": {"text": "round"}, "range": [0.5, total + 0.5], "tickformat": "d"}
    if total <= 10:
        x_axis["dtick"] = 1
    y_axis: Chart = {"title": {"text": title}} | ({} if y_range is None else {"range": list(y_range)})
    layout = {
        "xaxis": x_axis,
        "yaxis": y_axis,
        "hovermode": "x unified",
        **_stage_marks(stages, width / total),
    }
    return {"data": list(data), "layout": layout}


def _stage_marks(stages: Sequence[Stage], pixels_per_round: float) -> Chart:
    """A dotted line where each stage begins, and the name of the stage above the chart."""
    if len(stages) < 2:
        return {}
    line = {"color": "var(--mark)", "width": 1, "dash": "dot"}
    vertical = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    shapes = [vertical | {"x0": stage.first - 0.5, "x1": stage.first - 0.5} for stage in stages[1:]]
    position = {"yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    font = {"font": {"size": 11, "color": "var(--muted)"}}
    names = [
        position | font | {"x": stage.first - 0.5, "text": text, "hovertext": escape(stage.name)}
        for stage in stages
        if (text := _fitting(stage.name, stage.rounds * pixels_per_round))
    ]
    return {"shapes": shapes, "annotations": names}


def _fitting(name: str, pixels: float) -> str:
    """The longest of the shortened name, an ellipsis and nothing that fits into the width."""
    candidates = (shortened(name), "…")
    fits = [text for text in candidates if LETTER_WIDTH * (len(text) + 1) <= pixels]
    return escape(fits[0]) if fits else ""


def _loss_lines(rows: Sequence[Row], stages: Sequence[Stage]) -> list[Chart]:
    """One line per stage: losses of different stages are not comparable."""
    lines: list[Chart] = []
    for stage in stages:
        numbered = enumerate(rows[stage.first - 1 : stage.last], stage.first)
        points = [(number, row["loss"]) for number, row in numbered if row.get("loss") is not None]
        if points:
            lines.append(_line(points, html_label(stage.name), LINE_COLOURS[len(lines) % len(LINE_COLOURS)]))
    return lines


def _score_lines(rows: Sequence[Row], names: Mapping[str, str]) -> list[Chart]:
    lines = []
    for index, (key, name) in enumerate(names.items()):
        points = [(number, row[key]) for number, row in enumerate(rows, 1) if row.get(key) is not None]
        if points:
            lines.append(_line(points, name, LINE_COLOURS[index % len(LINE_COLOURS)]))
    return lines


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


def cost_charts(rows: Sequence[Row], federated: bool) -> dict[str, Chart]:
    """Megabytes, seconds and, in a federation, participants of each round."""
    down, up = ([row.get(key, 0) / MEGABYTE for row in rows] for key in ("bytes_down", "bytes_up"))
    seconds = [row["seconds"] for row in rows]
    titled = {
        "bytes": ("MB", [_bars("to clients", down, 0), _bars("from clients", up, 1)]),
        "seconds": ("seconds", [_bars("seconds", seconds, 2)]),
    }
    if federated:
        titled["participants"] = ("clients", _participant_bars(rows))
    stages, stacked = find_stages(rows), {"barmode": "stack", "bargap": 0.25}
    charts = {
        key: line_chart(bars, stages, title, width=NARROW_CHART_WIDTH)
        for key, (title, bars) in titled.items()
    }
    return {key: chart | {"layout": chart["layout"] | stacked} for key, chart in charts.items()}


def _participant_bars(rows: Sequence[Row]) -> list[Chart]:
    kinds = (("took part", "participants", 0), ("refused", "refused", 3), ("dropped", "dropped", 4))
    bars = [_bars(name, [len(row.get(key, ())) for row in rows], colour) for name, key, colour in kinds]
    return [bar for bar in bars if any(bar["y"])]


def _bars(name: str, heights: Sequence[float | int], colour: int) -> Chart:
    """One bar per round, in the colour of this index."""
    return {
        "type": "bar",
        "name": name,
        "x": list(range(1, len(heights) + 1)),
        "y": [round(float(height), 4) for height in heights],
        "marker": {"color": LINE_COLOURS[colour]},
    }


def named_axis(names: Sequence[str]) -> Chart:
    """A numeric axis with names as tick labels; if there are many names, evenly spaced ones are labelled.

    plotly merges categories of equal text, which shortened names may have; numbers stay distinct.
    """
    every = -(-len(names) // MAX_TICKS)
    labelled = range(0, len(names), every or 1)
    return {
        "type": "linear",
        "tickvals": list(labelled),
        "ticktext": [html_label(names[index]) for index in labelled],
        "zeroline": False,
    }


def html_label(text: str) -> str:
    """A name chosen by a user, shortened and escaped: plotly reads labels as HTML."""
    return escape(shortened(text))


def shortened(text: str, max_letters: int = 24) -> str:
    """The text cut in the middle: names that begin alike mostly differ at their end."""
    if len(text) <= max_letters:
        return text
    return f"{text[: (max_letters - 1) // 2]}…{text[-(max_letters // 2) :]}"
