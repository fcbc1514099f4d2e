"""Renders the HTML pages from the templates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from fedmcc.report import charts, formatting, heatmaps
from fedmcc.report.charts import Chart
from fedmcc.report.cluster_choice import choice_chart
from fedmcc.report.clusters import Cluster
from fedmcc.report.gallery import Card
from fedmcc.report.oddities import Oddities
from fedmcc.report.run_facts import Assignments, Facts, protocol_scores
from fedmcc.report.score_tiles import score_tiles
from fedmcc.runs.directory import Row

MAX_REFUSAL_ROWS = 200  # the last ones are shown
MAX_CLIENT_ROWS = 200  # the first ones are shown
MAX_HEIGHT_BESIDE = 440  # pixels: a taller table is placed below the chart of cluster sizes
HEIGHT_ABOVE = 300  # pixels of that chart if the table is below it

ASSETS = ("theme.css", "style.css", "page.js", "map.js", "similar.js")

Context = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ImageContent:
    """What a page shows of the images; what is not available is None or empty."""

    assignments: Assignments | None = None
    clusters: Sequence[Cluster] = ()
    map: Context | None = None
    cards: list[Card] = field(default_factory=list)
    oddities: Oddities = field(default_factory=Oddities)
    views: list[list[str]] = field(default_factory=list)  # each row: an image, then views of it
    warning: str | None = None


def render(facts: Facts, content: ImageContent) -> str:
    """The page of one run."""
    return _render_template("run.html", _head(facts, content) | _sections(facts, content))


def render_comparison(context: Context) -> str:
    """The page that compares several runs."""
    return _render_template("comparison.html", context)


def _render_template(template: str, context: Context) -> str:
    loader = jinja2.PackageLoader("fedmcc.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": formatting.duration, "size": formatting.size}
    environment.globals["plural"] = formatting.plural
    assets = {name.replace(".", "_"): _asset(name) for name in ASSETS}
    return environment.get_template(template).render(context, plotly=get_plotlyjs(), **assets)


def _asset(name: str) -> str:
    return (files("fedmcc.report") / "templates" / name).read_text(encoding="utf-8")


def _head(facts: Facts, content: ImageContent) -> Context:
    """The title, the scores and the settings of the run."""
    scores = groupby(protocol_scores(facts), attrgetter("protocol"))
    return {
        "title": f"{facts.option('method', default='A run')} on {formatting.data_name(facts) or 'images'}",
        "name": facts.name,
        "parts": list(filter(None, _subtitle(facts, content))),
        "finished": facts.run.finished,
        "warnings": list(filter(None, (facts.scores.get("warning"), content.warning))),
        "tiles": score_tiles(facts),
        "settings": formatting.settings(facts, charts.find_stages(facts.rows)),
        "config": facts.config_text,
        "environment": facts.environment,
        "evaluation": {protocol: list(group) for protocol, group in scores},
    }


def _subtitle(facts: Facts, content: ImageContent) -> Iterator[str]:
    assignments = content.assignments
    count = facts.scores.get("images") or (len(assignments) if assignments else 0)
    yield formatting.plural(count, "image") if count else ""
    yield formatting.plural(facts.clusters, "cluster") if facts.clusters else ""
    yield formatting.clients(facts)
    yield formatting.plural(len(facts.rows), "round")
    yield f"{formatting.duration(facts.seconds)} of training"
    yield formatting.day(facts.environment.get("started"))


def _sections(facts: Facts, content: ImageContent) -> Context:
    partition, assignments = facts.partition, content.assignments
    clients = facts.option("partition", "clients", 1) if partition is None else len(partition.clients)
    client_rows, refusals = _client_rows(facts) if clients > 1 else [], _refusals(facts)
    return {
        "charts": _charts(facts, content, federated=clients > 1),
        "federated": clients > 1,
        "client_rows": client_rows[:MAX_CLIENT_ROWS],
        "client_count": len(client_rows),
        "refusals": refusals[-MAX_REFUSAL_ROWS:],
        "refusal_count": len(refusals),
        "map": content.map,
        "cards": content.cards,
        "oddities": content.oddities,
        "has_confidence": assignments is not None and assignments.confidence is not None,
        "views": content.views,
    }


def _charts(facts: Facts, content: ImageContent, federated: bool) -> dict[str, Chart]:
    drawn = charts.round_charts(facts.rows) | charts.cost_charts(facts.rows, federated)
    if facts.partition is not None and (chart := heatmaps.clients_and_classes(facts.partition)):
        drawn["holdings"] = chart
    if content.assignments is not None:
        drawn |= _cluster_charts(content.assignments, content.clusters)
    return drawn | choice_chart(facts.run)


def _cluster_charts(assignments: Assignments, clusters: Sequence[Cluster]) -> dict[str, Chart]:
    sizes = heatmaps.cluster_sizes(clusters)
    table = heatmaps.clusters_and_classes(assignments, clusters)
    if table is None:
        return {"sizes": sizes}
    height = table["height"] if table["height"] <= MAX_HEIGHT_BESIDE else HEIGHT_ABOVE
    return {"sizes": sizes | {"height": height}, "confusion": table}


def _refusals(facts: Facts) -> list[Context]:
    """The clients whose updates were refused or missing, round by round, with the reason."""
    names = _client_names(facts)
    refusals = []
    for row in facts.rows:
        entries = [
            ("refused", entry.get("client"), entry.get("reason", "")) for entry in row.get("refused", ())
        ]
        entries += [("dropped", client, _drop_reason(row, client)) for client in row.get("dropped", ())]
        refusals += [
            {
                "round": f"{row['stage']} {row['round']}",
                "client": names.get(client, client),
                "outcome": outcome,
                "reason": reason,
            }
            for outcome, client, reason in entries
        ]
    return refusals


def _drop_reason(row: Row, client: int) -> str:
    """The reason that the engine recorded; only engines with sites on other machines record one."""
    reason = str(row.get("reasons", {}).get(str(client), "the client did not answer."))
    return reason[:1].upper() + reason[1:]


def _client_rows(facts: Facts) -> list[Context]:
    """Each client's images, rounds, refusals, drops and traffic."""
    rounds, refused, dropped = Counter[int](), Counter[int](), Counter[int]()
    received, sent = Counter[int](), Counter[int]()
    for row in facts.rows:
        rounds.update(row.get("participants", ()))
        refused.update(entry.get("client") for entry in row.get("refused", ()))
        dropped.update(row.get("dropped", ()))
        for client, (down, up) in row.get("bytes", {}).items():
            received[int(client)] += down
            sent[int(client)] += up
    images = [len(rows) for rows in facts.partition.rows] if facts.partition else []
    return [
        {
            "name": name,
            "images": images[client] if client < len(images) else None,
            "rounds": rounds[client],
            "refused": refused[client],
            "dropped": dropped[client],
            "received": received[client],
            "sent": sent[client],
        }
        for client, name in _client_names(facts).items()
    ]


def _client_names(facts: Facts) -> dict[int, str]:
    """The clients' names by number."""
    if facts.partition is not None:
        return dict(enumerate(facts.partition.clients))
    sites = {int(client): name for row in facts.rows for client, name in row.get("sites", {}).items()}
    numbers = {
        client for row in facts.rows for key in ("participants", "dropped") for client in row.get(key, ())
    }
    return {client: sites.get(client, str(client)) for client in sorted(numbers | sites.keys())}
