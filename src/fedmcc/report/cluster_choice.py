"""The chart behind a chosen number of clusters."""

from typing import Any

from fedmcc.errors import InputError
from fedmcc.report.charts import LINE_COLOURS, Chart
from fedmcc.runs.directory import Run

FILE = "cluster-number.json"


def choice_chart(run: Run) -> dict[str, Chart]:
    """Score and stability of each number of clusters, with the chosen one marked; nothing if none was."""
    content = run.read_json(FILE)
    if not content:
        return {}
    try:
        return {"choice": _chart(content)}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{run.path / FILE} is damaged: restore it from a copy, or remove it.") from None


def _chart(content: dict[str, Any]) -> Chart:
    chosen, others = int(content["chosen"]), {int(number) for number in content["runners_up"]}
    numbers = [int(point["clusters"]) for point in content["curve"]]
    sizes = [11 if number == chosen else 8 if number in others else 4 for number in numbers]
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": numbers,
            "y": [round(float(point[name]), 4) for point in content["curve"]],
            "line": {"color": colour, "width": 2},
            "marker": {"color": colour, "size": sizes if name == "score" else 4},
        }
        for name, colour in zip(("score", "stability"), LINE_COLOURS, strict=False)
    ]
    axes = {
        "xaxis": {"title": {"text": "clusters"}, "tickformat": "d"},
        "yaxis": {"title": {"text": "score"}},
    }
    return {"data": lines, "layout": axes}
