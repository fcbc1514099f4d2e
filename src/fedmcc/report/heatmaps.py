"""Charts of tables: who holds which classes, which cluster holds which class, how large clusters are."""

from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Float, Int64

from fedmcc.report.charts import LETTER, WIDE, Chart, named_axis, shortened
from fedmcc.report.clusters import Cluster, confusion
from fedmcc.report.run_facts import Assigned, Shares

NUMBERED = 20  # rows or columns up to which cells have room for numbers
TALLEST = 900  # pixels
NAMED_IN_FULL = 10_000  # cells up to which each carries its names uncut
HEAT = [[0, "var(--heat-0)"], [0.5, "var(--heat-1)"], [1, "var(--heat-2)"]]

Counts = Int64[np.ndarray, "rows columns"]


def sizes(clusters: Sequence[Cluster]) -> Chart:
    """A bar per cluster, in its colour."""
    names = [f"{cluster.number}" for cluster in clusters]
    hover = [
        f"cluster {cluster.number}" + (f" · {escape(cluster.matched)}" if cluster.matched else "")
        for cluster in clusters
    ]
    bar = {
        "type": "bar",
        "x": names,
        "y": [cluster.size for cluster in clusters],
        "marker": {"color": [cluster.colour for cluster in clusters]},
        "hovertext": hover,
        "hovertemplate": "%{hovertext}: %{y:,} images<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "cluster"}, "type": "category"},
        "yaxis": {"title": {"text": "images"}},
        "bargap": 0.2,
        "showlegend": False,
    }
    return {"data": [bar], "layout": layout}


def confusions(assigned: Assigned, clusters: Sequence[Cluster]) -> Chart | None:
    """Clusters in the order of their classes against classes; coloured by share of the class."""
    if assigned.labels is None:
        return None
    order = [cluster.number for cluster in clusters]
    counts = confusion(assigned, len(order))[order]
    share = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    names = [f"{number}" for number in order]
    return _heat(counts, share, ("cluster", names), ("class", list(assigned.classes)))


def holdings(shares: Shares) -> Chart | None:
    """Clients against classes; coloured by share of the client's images. Without labels, their numbers."""
    clients = [f"client {name}" if name.isdigit() else name for name in shares.clients]
    if len(clients) < 2:
        return None
    if shares.holdings is None:
        return _plain_holdings(clients, [len(rows) for rows in shares.rows])
    share = shares.holdings / np.maximum(shares.holdings.sum(axis=1, keepdims=True), 1)
    return _heat(shares.holdings, share, ("", clients), ("class", list(shares.classes)))


def _plain_holdings(clients: Sequence[str], counts: Sequence[int]) -> Chart:
    bar = {
        "type": "bar",
        "x": list(range(len(clients))),
        "y": list(counts),
        "marker": {"color": "var(--line-1)"},
        "hovertext": [escape(name) for name in clients],
        "hovertemplate": "%{hovertext}: %{y:,} images<extra></extra>",
    }
    layout = {"xaxis": named_axis(clients), "yaxis": {"title": {"text": "images"}}, "showlegend": False}
    return {"data": [bar], "layout": layout}


def _heat(
    counts: Counts,
    share: Float[np.ndarray, "rows columns"],
    down: tuple[str, list[str]],
    across: tuple[str, list[str]],
) -> Chart:
    """A table of numbers on coloured ground, small where it is large."""
    hover = f"{down[0]} %{{customdata[0]}}<br>{across[0]} %{{customdata[1]}}<br>%{{customdata[2]:,}} images"
    cells = _cells(counts, share, down[1], across[1])
    cells |= {"hovertemplate": f"{hover.strip()}<extra></extra>"}
    left, top = (named_axis(names) | {"title": {"text": title}} for title, names in (down, across))
    upright = _upright(top["ticktext"])
    layout = {
        "margin": {"l": 44, "r": 12, "t": 52, "b": 10},
        "xaxis": top | {"side": "top", "showgrid": False} | ({"tickangle": -90} if upright else {}),
        "yaxis": left | {"autorange": "reversed", "showgrid": False},
    }
    return {"data": [cells], "layout": layout, "height": min(TALLEST, 70 + 36 * len(counts)) + upright}


def _cells(
    counts: Counts, share: Float[np.ndarray, "rows columns"], down: Sequence[str], across: Sequence[str]
) -> Chart:
    """Each with its names in full, for the hover, and with its number where there is room."""
    cut = shortened if counts.size > NAMED_IN_FULL else str
    rows, columns = ([escape(cut(name)) for name in names] for names in (down, across))
    cells: Chart = {
        "type": "heatmap",
        "z": [[round(float(value), 4) for value in row] for row in share],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "customdata": [
            [[row, *cell] for cell in zip(columns, own, strict=True)]
            for row, own in zip(rows, counts.tolist(), strict=True)
        ],
        "colorscale": HEAT,
        **{"zmin": 0, "zmax": 1, "showscale": False},
    }
    if max(counts.shape) <= NUMBERED:
        numbers = [[str(value) if value else "" for value in row] for row in counts.tolist()]
        cells |= {"text": numbers, "texttemplate": "%{text}", "xgap": 2, "ygap": 2}
    return cells


def _upright(names: Sequence[str]) -> int:
    """The height in pixels of names that would leave the chart aslant, and so are upright; else 0."""
    longest = max(map(len, names), default=0)
    return LETTER * longest if longest > 3 and LETTER * longest * len(names) > WIDE else 0
