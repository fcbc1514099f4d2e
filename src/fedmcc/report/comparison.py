"""Compares several runs; runs that differ only in their seed are one group, with mean and deviation."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmcc.report import charts, formatting
from fedmcc.report.charts import LABEL_FREE_SCORES, LABELLED_SCORES, Chart
from fedmcc.report.page import render_comparison
from fedmcc.report.run_facts import Facts, ProtocolScore, protocol_scores
from fedmcc.report.run_groups import Group, differences, group_runs
from fedmcc.runs.directory import Row

LABELLED_COLUMNS = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "features": "k-means ACC", "knn": "kNN"}
LOSS = {"loss": "loss"}
BAND_OPACITY = "2b"  # hexadecimal, appended to a colour
LOWER_IS_BETTER = ("alignment", "uniformity")
TIE_MARGIN = 0.001  # scores this close to the best one are marked as best too

Spread = tuple[float, float | None]  # mean, and standard deviation if there are several values
Summary = dict[str, Any]


def compare(runs: Sequence[Facts]) -> str:
    """The page that compares the runs."""
    groups = group_runs(runs)
    curves = _curves(groups, LABELLED_SCORES) or _curves(groups, LABEL_FREE_SCORES)
    curves |= _curves(groups, LOSS)
    summaries = [summarise(group) for group in groups]
    columns = _columns(summaries, LABELLED_COLUMNS) or _columns(summaries, LABEL_FREE_SCORES)
    protocols = _protocol_columns(runs)
    return render_comparison(
        {
            "title": f"{len(runs)} runs compared",
            "parts": [formatting.plural(len(groups), "configuration"), formatting.plural(len(runs), "run")],
            "groups": summaries,
            "scores": (columns, _best(summaries, "scores", columns)),
            "evaluation": (protocols, _best(summaries, "evaluation", protocols)),
            "curves": {key: (LABELLED_SCORES | LABEL_FREE_SCORES | LOSS)[key] for key in curves},
            "charts": curves,
            "differences": differences(groups),
            "runs": [_run_row(run) for run in runs],
        }
    )


def _run_row(run: Facts) -> dict[str, Any]:
    return {
        "name": run.name,
        "seed": run.config.get("seed"),
        "finished": run.run.finished,
        "rounds": len(run.rows),
        "seconds": run.seconds,
        "bytes": run.bytes_sent,
    }


def _columns(summaries: Sequence[Summary], names: dict[str, str]) -> dict[str, str]:
    return {key: name for key, name in names.items() if any(key in group["scores"] for group in summaries)}


def _curves(groups: Sequence[Group], names: dict[str, str]) -> dict[str, Chart]:
    curves = {key: overlaid(groups, key) for key in names}
    return {key: chart for key, chart in curves.items() if chart["data"]}


def summarise(group: Group) -> Summary:
    """The final scores of a group: mean, deviation if there are several runs, and number of runs."""
    scores: dict[str, list[float | int]] = defaultdict(list)
    for run in group.runs:
        for key, value in final_scores(run).items():
            scores[key].append(value)
    protocols = _by_protocol(group)
    return {
        "name": group.name,
        "colour": group.colour,
        "count": len(group.runs),
        "scores": {key: spread(values) for key, values in scores.items()},
        "evaluation": {key: _protocol_spread(values) for key, values in protocols.items()},
        "runs": {"scores": _lengths(scores), "evaluation": _lengths(protocols)},
    }


def _lengths(lists: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    return {key: len(values) for key, values in lists.items()}


def _by_protocol(group: Group) -> dict[str, list[ProtocolScore]]:
    by_protocol: dict[str, list[ProtocolScore]] = defaultdict(list)
    for run in group.runs:
        for score in protocol_scores(run):
            by_protocol[_key(score)].append(score)
    return by_protocol


def _protocol_spread(scores: Sequence[ProtocolScore]) -> Spread:
    """Over the runs of a group; over the seeds of the protocol if there is one run."""
    if len(scores) > 1:
        return spread([score.mean for score in scores])
    (score,) = scores
    return score.mean, score.std if score.seeds > 1 else None


def _key(score: ProtocolScore) -> str:
    return f"{score.protocol} {score.score}"


def _protocol_columns(runs: Sequence[Facts]) -> dict[str, str]:
    """Keys and headings of the protocols' scores, in the order in which runs have them."""
    return {
        _key(score): f"{score.protocol} {LABELLED_COLUMNS.get(score.score, score.score)}"
        for run in runs
        for score in protocol_scores(run)
    }


def final_scores(run: Facts) -> dict[str, float | int]:
    """The scores of a finished run by the keys of the columns; empty if the run is not finished."""
    clusterings = run.scores.get("scores", {})
    head, features = clusterings.get("head") or {}, clusterings.get("features") or {}
    scores = dict(head or features)
    scores |= {"features": features.get("acc"), "knn": run.scores.get("knn")}
    scores |= run.scores.get("label_free", {})
    return {key: scores[key] for key in LABELLED_COLUMNS | LABEL_FREE_SCORES if scores.get(key) is not None}


def spread(values: Sequence[float | int]) -> Spread:
    """Mean and sample standard deviation, which is None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def overlaid(groups: Sequence[Group], key: str) -> Chart:
    """One line per group, the mean of its runs, with a band of one standard deviation."""
    traces = [trace for group in groups for trace in _traces(group, key)]
    runs = [run.rows for group in groups for run in group.runs]
    longest = max(runs, key=len)
    equal = all(_stage_names(rows) == _stage_names(longest[: len(rows)]) for rows in runs)
    stages = charts.find_stages(longest) if equal else [charts.Stage("", 1, len(longest))]
    return charts.line_chart(traces, stages, "", None if key in ("loss", "silhouette") else [0, 1.02])


def _stage_names(rows: Sequence[Row]) -> list[str]:
    return [row["stage"] for row in rows]


def _traces(group: Group, key: str) -> list[Chart]:
    """The means of a group; losses of different stages are not comparable and not joined."""
    longest = max((run.rows for run in group.runs), key=len)
    stages = charts.find_stages(longest) if key == "loss" else [charts.Stage("", 1, len(longest))]
    traces: list[Chart] = []
    for stage in stages:
        by_round: dict[int, list[float | int]] = defaultdict(list)
        for run in group.runs:
            for number, row in enumerate(run.rows[stage.first - 1 : stage.last], stage.first):
                if row.get(key) is not None:
                    by_round[number].append(row[key])
        if by_round:
            traces += _line_and_band(group, by_round, in_legend=not traces)
    return traces


def _line_and_band(group: Group, by_round: dict[int, list[float | int]], in_legend: bool) -> list[Chart]:
    rounds = sorted(by_round)
    spreads = [spread(by_round[number]) for number in rounds]
    line: Chart = {
        "type": "scatter",
        "mode": "lines" if len(rounds) > 1 else "markers",
        "x": rounds,
        "y": [round(mean, 5) for mean, _ in spreads],
        "line": {"color": group.colour, "width": 2},
        "marker": {"color": group.colour},
        "name": group.label,
        "legendgroup": str(group.number),
        "showlegend": in_legend,
    }
    return [_band(group, rounds, spreads), line] if any(std for _, std in spreads) else [line]


def _band(group: Group, rounds: Sequence[int], spreads: Sequence[Spread]) -> Chart:
    above, below = ([round(mean + sign * (std or 0), 5) for mean, std in spreads] for sign in (1, -1))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*rounds, *reversed(rounds)],
        "y": [*above, *reversed(below)],
        "fill": "toself",
        "fillcolor": group.colour + BAND_OPACITY,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": str(group.number),
        "showlegend": False,
    }


def _best(summaries: Sequence[Summary], kind: str, keys: Iterable[str]) -> dict[str, float]:
    """The mean from which on a score is marked as best; infinite if lower values are better."""
    means = {key: [group[kind][key][0] for group in summaries if key in group[kind]] for key in keys}
    return {key: math.inf if key.endswith(LOWER_IS_BETTER) else max(means[key]) - TIE_MARGIN for key in keys}
