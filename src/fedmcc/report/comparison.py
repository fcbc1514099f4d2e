"""Several runs side by side: those that differ only in their seed are one line, with mean and deviation."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmcc.report import charts, formatting
from fedmcc.report.charts import LABELLED, Chart
from fedmcc.report.page import render_comparison
from fedmcc.report.run_facts import Facts, Measured, measured
from fedmcc.report.run_groups import Group, differences, grouped
from fedmcc.runs.directory import Row

LABELS_NEEDED = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "features": "k-means ACC", "knn": "kNN"}
LABEL_FREE = {"confidence": "confidence", "balance": "balance", "silhouette": "silhouette"}
LOSS = {"loss": "loss"}
Spread = tuple[float, float | None]  # mean, and deviation where there are several
FAINT = "2b"  # opacity of a band
LOWER = ("alignment", "uniformity")  # is better
LEVEL = 0.001  # scores nearer than that to the best are as good


def compare(runs: Sequence[Facts]) -> str:
    """The page that compares them."""
    groups = grouped(runs)
    drawn = _curves(groups, LABELLED) or _curves(groups, LABEL_FREE)
    drawn |= _curves(groups, LOSS)
    table = [summary(group) for group in groups]
    columns = _columns(table, LABELS_NEEDED) or _columns(table, LABEL_FREE)
    protocols = _protocols(runs)
    return render_comparison(
        {
            "title": f"{len(runs)} runs compared",
            "parts": [formatting.plural(len(groups), "configuration"), formatting.plural(len(runs), "run")],
            "groups": table,
            "scores": (columns, _best(table, "scores", columns)),
            "measured": (protocols, _best(table, "measured", protocols)),
            "curves": {key: (LABELLED | LABEL_FREE | LOSS)[key] for key in drawn},
            "charts": drawn,
            "differences": differences(groups),
            "runs": [_line(run) for run in runs],
        }
    )


def _line(run: Facts) -> dict[str, Any]:
    sent = sum(row.get("bytes_down", 0) + row.get("bytes_up", 0) for row in run.rows)
    seconds = sum(row["seconds"] for row in run.rows)
    found = {"name": run.name, "seed": run.config.get("seed"), "finished": run.run.finished}
    return found | {"rounds": len(run.rows), "seconds": seconds, "bytes": sent}


def _columns(table: Sequence[dict[str, Any]], names: dict[str, str]) -> dict[str, str]:
    return {key: name for key, name in names.items() if any(key in line["scores"] for line in table)}


def _curves(groups: Sequence[Group], names: dict[str, str]) -> dict[str, Chart]:
    drawn = {key: overlaid(groups, key) for key in names}
    return {key: made for key, made in drawn.items() if made["data"]}


def summary(group: Group) -> dict[str, Any]:
    """The final scores of a group: mean, and deviation where there are several; and of how many runs."""
    scores: dict[str, list[float | int]] = defaultdict(list)
    for run in group.runs:
        for key, value in final(run).items():
            scores[key].append(value)
    protocols = _by_protocol(group)
    return {
        "name": group.name,
        "colour": group.colour,
        "count": len(group.runs),
        "scores": {key: spread(values) for key, values in scores.items()},
        "measured": {key: _over(found) for key, found in protocols.items()},
        "runs": {"scores": _lengths(scores), "measured": _lengths(protocols)},
    }


def _lengths(gathered: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    return {key: len(values) for key, values in gathered.items()}


def _by_protocol(group: Group) -> dict[str, list[Measured]]:
    gathered: dict[str, list[Measured]] = defaultdict(list)
    for run in group.runs:
        for found in measured(run):
            gathered[_key(found)].append(found)
    return gathered


def _over(found: Sequence[Measured]) -> Spread:
    """Over the runs of a group, or of a single run over the seeds of the protocol."""
    return spread([one.mean for one in found]) if len(found) > 1 else _alone(found[0])


def _alone(found: Measured) -> Spread:
    return found.mean, found.std if found.seeds > 1 else None


def _key(found: Measured) -> str:
    return f"{found.protocol} {found.score}"


def _protocols(runs: Sequence[Facts]) -> dict[str, str]:
    """The columns of what protocols say, in the order in which runs name them."""
    all_found = [found for run in runs for found in measured(run)]
    return {
        _key(found): f"{found.protocol} {LABELS_NEEDED.get(found.score, found.score)}" for found in all_found
    }


def final(run: Facts) -> dict[str, float | int]:
    """The scores of a finished run by the keys of the columns; nothing of one that is not."""
    scores = run.scores.get("scores", {})
    head, features = scores.get("head") or {}, scores.get("features") or {}
    found = dict(head or features)
    found |= {"features": features.get("acc"), "knn": run.scores.get("knn")}
    found |= run.scores.get("label_free", {})
    return {key: found[key] for key in LABELS_NEEDED | LABEL_FREE if found.get(key) is not None}


def spread(values: Sequence[float | int]) -> Spread:
    """Mean and standard deviation; of a single value there is none."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def overlaid(groups: Sequence[Group], key: str) -> Chart:
    """A line per group through the means of its runs, in a band of one deviation."""
    data = [trace for group in groups for trace in _traces(group, key)]
    runs = [run.rows for group in groups for run in group.runs]
    longest = max(runs, key=len)
    same = all(_stages(rows) == _stages(longest[: len(rows)]) for rows in runs)
    marks = charts.stages(longest) if same else [charts.Stage("", 1, len(longest))]
    return charts.chart(data, marks, "", None if key in ("loss", "silhouette") else [0, 1.02])


def _stages(rows: Sequence[Row]) -> list[str]:
    return [row["stage"] for row in rows]


def _traces(group: Group, key: str) -> list[Chart]:
    """The means of a group; losses of different stages do not compare and are not joined."""
    longest = max((run.rows for run in group.runs), key=len)
    parts = charts.stages(longest) if key == "loss" else [charts.Stage("", 1, len(longest))]
    found: list[Chart] = []
    for part in parts:
        gathered: dict[int, list[float | int]] = defaultdict(list)
        for run in group.runs:
            for number, row in enumerate(run.rows[part.first - 1 : part.last], part.first):
                if row.get(key) is not None:
                    gathered[number].append(row[key])
        if gathered:
            found += _band(group, gathered, first=not found)
    return found


def _band(group: Group, gathered: dict[int, list[float | int]], first: bool) -> list[Chart]:
    x = sorted(gathered)
    found = [spread(gathered[number]) for number in x]
    name, colour = group.label, group.colour
    line: Chart = {"x": x, "y": [round(mean, 5) for mean, _ in found], "name": name, "showlegend": first}
    line |= {"mode": "lines" if len(x) > 1 else "markers", "marker": {"color": colour}}
    line |= {"type": "scatter", "legendgroup": str(group.number), "line": {"color": colour, "width": 2}}
    if not any(deviation for _, deviation in found):
        return [line]
    above, below = ([round(mean + sign * (d or 0), 5) for mean, d in found] for sign in (1, -1))
    area: Chart = {
        "x": [*x, *reversed(x)],
        "y": [*above, *reversed(below)],
        "fill": "toself",
        "mode": "lines",
    }
    area |= {"type": "scatter", "fillcolor": colour + FAINT, "line": {"width": 0}, "hoverinfo": "skip"}
    return [area | {"showlegend": False, "legendgroup": str(group.number)}, line]


def _best(table: Sequence[dict[str, Any]], kind: str, keys: Iterable[str]) -> dict[str, float]:
    """From where on scores are as good as the best; nowhere where lower is better."""
    means = {key: [line[kind][key][0] for line in table if key in line[kind]] for key in keys}
    return {key: math.inf if key.endswith(LOWER) else max(means[key]) - LEVEL for key in keys}
