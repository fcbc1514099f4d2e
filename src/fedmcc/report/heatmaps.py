"""Charts of counts: cluster sizes, clusters against classes, and clients against classes."""

from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Float, Int64

from fedmcc.report.charts import CHART_WIDTH, LETTER_WIDTH, Chart, named_axis, shortened
from fedmcc.report.clusters import Cluster, confusion
from fedmcc.report.run_facts import Assignments, Partition

MAX_NUMBERED = 20  # rows or columns: in more, cells have no room for numbers
MAX_HEIGHT = 900  # pixels
MAX_CELLS_WITH_FULL_NAMES = 10_000  # each cell carries its names for the hover text
COLOUR_SCALE = [[0, "var(--heat-0)"], [0.5, "var(--heat-1)"], [1, "var(--heat-2)"]]

Counts = Int64[np.ndarray, "rows columns"]
Shares = Float[np.ndarray, "rows columns"]
NamedAxis = tuple[str, list[str]]  # title, names


def cluster_sizes(clusters: Sequence[Cluster]) -> Chart:
    """One bar per cluster, in the colour of the cluster."""
    hover = [
        f"cluster {escape(cluster.title)}" + (f" · {escape(cluster.matched)}" if cluster.matched else "")
        for cluster in clusters
    ]
    bar = {
        "type": "bar",
        "x": [f"{cluster.number}" for cluster in clusters],
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


def clusters_and_classes(assignments: Assignments, clusters: Sequence[Cluster]) -> Chart | None:
    """Images per cluster and class, coloured by share of the class; None without labels."""
    if assignments.labels is None:
        return None
    order = [cluster.number for cluster in clusters]
    counts = confusion(assignments, len(order))[order]
    shares = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    names = [f"{number}" for number in order]
    return _heatmap(counts, shares, ("cluster", names), ("class", list(assignments.classes)))


def clients_and_classes(partition: Partition) -> Chart | None:
    """Images per client and class, coloured by share of the client; without labels, images per client.

    None if there are fewer than two clients.
    """
    clients = [f"client {name}" if name.isdigit() else name for name in partition.clients]
    if len(clients) < 2:
        return None
    if partition.holdings is None:
        return _client_sizes(clients, [len(rows) for rows in partition.rows])
    shares = partition.holdings / np.maximum(partition.holdings.sum(axis=1, keepdims=True), 1)
    return _heatmap(partition.holdings, shares, ("", clients), ("class", list(partition.classes)))


def _client_sizes(clients: Sequence[str], counts: Sequence[int]) -> Chart:
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


def _heatmap(counts: Counts, shares: Shares, down: NamedAxis, across: NamedAxis) -> Chart:
    """A table of counts on coloured cells; cells shrink if there are many rows."""
    hover = f"{down[0]} %{{customdata[0]}}<br>{across[0]} %{{customdata[1]}}<br>%{{customdata[2]:,}} images"
    cells = _cells(counts, shares, down[1], across[1])
    cells |= {"hovertemplate": f"{hover.strip()}<extra></extra>"}
    left, top = (named_axis(names) | {"title": {"text": title}} for title, names in (down, across))
    upright = _upright_height(top["ticktext"])
    layout = {
        "margin": {"l": 44, "r": 12, "t": 52, "b": 10},
        "xaxis": top | {"side": "top", "showgrid": False} | ({"tickangle": -90} if upright else {}),
        "yaxis": left | {"autorange": "reversed", "showgrid": False},
    }
    return {"data": [cells], "layout": layout, "height": min(MAX_HEIGHT, 70 + 36 * len(counts)) + upright}


def _cells(counts: Counts, shares: Shares, down: Sequence[str], across: Sequence[str]) -> Chart:
    """The cells with their names, for the hover text, and with their numbers if there is room."""
    name_text = shortened if counts.size > MAX_CELLS_WITH_FULL_NAMES else str
    rows, columns = ([escape(name_text(name)) for name in names] for names in (down, across))
    cells: Chart = {
        "type": "heatmap",
        "z": [[round(float(value), 4) for value in row] for row in shares],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "customdata": [
            [[row, *cell] for cell in zip(columns, values, strict=True)]
            for row, values in zip(rows, counts.tolist(), strict=True)
        ],
        "colorscale": COLOUR_SCALE,
        **{"zmin": 0, "zmax": 1, "showscale": False},
    }
    if max(counts.shape) <= MAX_NUMBERED:
        numbers = [[str(value) if value else "" for value in row] for row in counts.tolist()]
        cells |= {"text": numbers, "texttemplate": "%{text}", "xgap": 2, "ygap": 2}
    return cells


def _upright_height(names: Sequence[str]) -> int:
    """Height in pixels of names that must be upright because they are too wide side by side, else 0."""
    longest = max(map(len, names), default=0)
    return LETTER_WIDTH * longest if longest > 3 and LETTER_WIDTH * longest * len(names) > CHART_WIDTH else 0
