"""The chart behind a chosen number of clusters."""

from typing import Any

from fedmcc.errors import InputError
from fedmcc.report.charts import LINE_COLOURS, Chart
from fedmcc.runs.directory import Run

FILE = "cluster-number.json"


def choice_chart(run: Run) -> dict[str, Chart]:
    """What each merge into fewer clusters costs, with the chosen number marked; nothing if it was given."""
    content = run.read_json(FILE)
    if not content:
        return {}
    try:
        return {"choice": _chart(content)}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{run.path / FILE} is damaged: restore it from a copy, or remove it.") from None


def _chart(content: dict[str, Any]) -> Chart:
    chosen, limit = int(content["chosen"]), float(content["limit"])
    numbers = [int(point["clusters"]) for point in content["curve"]]
    cost = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "cost of a merge",
        "x": numbers,
        "y": [round(float(point["cost"]), 4) for point in content["curve"]],
        "line": {"color": LINE_COLOURS[0], "width": 2},
        "marker": {"color": LINE_COLOURS[0], "size": [11 if number == chosen else 4 for number in numbers]},
    }
    below = {
        "type": "scatter",
        "mode": "lines",
        "name": "merged below",
        "x": [numbers[0], numbers[-1]],
        "y": [limit, limit],
        "line": {"color": LINE_COLOURS[1], "width": 1},
    }
    axes = {
        "xaxis": {"title": {"text": "clusters"}, "tickformat": "d"},
        "yaxis": {"title": {"text": "nats lost by one cluster less"}},
    }
    return {"data": [cost, below], "layout": axes}
