"""The page: what its templates need, and the HTML that they make of it."""

from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from fedmcc.report import charts, formatting, heatmaps
from fedmcc.report.charts import Chart
from fedmcc.report.clusters import describe
from fedmcc.report.gallery import Card
from fedmcc.report.run_facts import Assigned, Facts, measured
from fedmcc.report.score_tiles import tiles
from fedmcc.runs.directory import Row

MOST_REFUSALS = 200  # lines of the table, the last ones
MOST_CLIENTS = 200  # the first ones
TALL = 440  # pixels of a table up to which there is a chart beside it; a taller one is below the chart
LOW = 300  # pixels of the chart then

Context = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Pictured:
    """What a page shows of the images, as far as there is something to show."""

    assigned: Assigned | None = None
    map: Context | None = None
    cards: list[Card] = field(default_factory=list)
    views: list[list[str]] = field(default_factory=list)  # in each row an image, then views of it
    complaint: str | None = None


def render(facts: Facts, pictured: Pictured) -> str:
    """The report of one run."""
    marks = charts.stages(facts.rows)
    return _rendered("run.html", _summary(facts, marks, pictured) | _sections(facts, pictured))


def render_comparison(context: Context) -> str:
    """The report of several runs."""
    return _rendered("comparison.html", context)


def _rendered(template: str, context: Context) -> str:
    loader = jinja2.PackageLoader("fedmcc.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": formatting.duration, "size": formatting.size}
    environment.globals["plural"] = formatting.plural
    assets = {name.replace(".", "_"): _asset(name) for name in ("style.css", "page.js", "map.js")}
    return environment.get_template(template).render(context, plotly=get_plotlyjs(), **assets)


def _asset(name: str) -> str:
    return (files("fedmcc.report") / "templates" / name).read_text(encoding="utf-8")


def _summary(facts: Facts, marks: list[charts.Stage], pictured: Pictured) -> Context:
    count = facts.scores.get("images") or (len(pictured.assigned) if pictured.assigned else None)
    parts = [
        formatting.plural(count, "image") if count else "",
        formatting.plural(facts.config.get("clusters") or 0, "cluster")
        if facts.config.get("clusters")
        else "",
        formatting.clients(facts),
        formatting.plural(len(facts.rows), "round"),
        formatting.duration(sum(row["seconds"] for row in facts.rows)) + " of training",
        formatting.day(facts.environment.get("started")),
    ]
    return {
        "title": f"{facts.option('method', default='A run')} on {facts.option('data', default='images')}",
        "name": facts.name,
        "parts": [part for part in parts if part],
        "finished": facts.run.finished,
        "warning": facts.scores.get("warning"),
        "complaint": pictured.complaint,
        "tiles": tiles(facts),
        "settings": formatting.settings(facts, marks),
        "config": facts.config_text,
        "environment": facts.environment,
        "evaluation": {name: list(found) for name, found in groupby(measured(facts), attrgetter("protocol"))},
    }


def _sections(facts: Facts, pictured: Pictured) -> Context:
    federated = len(facts.shares.clients) > 1 if facts.shares else facts.option("partition", "clients", 1) > 1
    drawn = charts.curves(facts.rows) | charts.traffic(facts.rows, federated)
    if facts.shares is not None and (held := heatmaps.holdings(facts.shares)):
        drawn["holdings"] = held
    if pictured.assigned is not None:
        drawn |= _of_clusters(pictured.assigned, facts.config.get("clusters") or 0)
    people, refusals = _client_rows(facts) if federated else [], _refusals(facts)
    return {
        "charts": drawn,
        "federated": federated,
        "people": people[:MOST_CLIENTS],
        "clients": len(people),
        "refusals": refusals[-MOST_REFUSALS:],
        "refused": len(refusals),
        "map": pictured.map,
        "cards": pictured.cards,
        "certain": pictured.assigned is not None and pictured.assigned.confidence is not None,
        "views": pictured.views,
    }


def _of_clusters(assigned: Assigned, count: int) -> dict[str, Chart]:
    clusters = describe(assigned, count)
    sizes, table = heatmaps.sizes(clusters), heatmaps.confusions(assigned, clusters)
    if table is None:
        return {"sizes": sizes}
    height = table["height"] if table["height"] <= TALL else LOW
    return {"sizes": sizes | {"height": height}, "confusion": table}


def _refusals(facts: Facts) -> list[Context]:
    """Whose updates did not count, and why."""
    names = _names(facts)
    found = []
    for row in facts.rows:
        where = f"{row['stage']} {row['round']}"
        told = [("refused", entry.get("client"), entry.get("reason", "")) for entry in row.get("refused", ())]
        told += [("dropped", client, _why_dropped(row, client)) for client in row.get("dropped", ())]
        found += [
            {"where": where, "client": names.get(client, client), "what": what, "reason": reason}
            for what, client, reason in told
        ]
    return found


def _why_dropped(row: Row, client: int) -> str:
    """As the engine says, which only knows it of sites elsewhere."""
    reason = str(row.get("reasons", {}).get(str(client), "it was asked and did not answer."))
    return reason[:1].upper() + reason[1:]


def _client_rows(facts: Facts) -> list[Context]:
    """What each client did: the rounds it took part in, and what it sent and received."""
    took, refused, dropped = Counter[int](), Counter[int](), Counter[int]()
    down, up = Counter[int](), Counter[int]()
    for row in facts.rows:
        took.update(row.get("participants", ()))
        refused.update(entry.get("client") for entry in row.get("refused", ()))
        dropped.update(row.get("dropped", ()))
        for client, (received, sent) in row.get("bytes", {}).items():
            down[int(client)] += received
            up[int(client)] += sent
    held = [len(rows) for rows in facts.shares.rows] if facts.shares else []
    return [
        {
            "name": name,
            "images": held[client] if client < len(held) else None,
            "took": took[client],
            "refused": refused[client],
            "dropped": dropped[client],
            "down": down[client],
            "up": up[client],
        }
        for client, name in _names(facts).items()
    ]


def _names(facts: Facts) -> dict[int, str]:
    """The clients' names by their numbers."""
    if facts.shares is not None:
        return dict(enumerate(facts.shares.clients))
    sites = {int(client): name for row in facts.rows for client, name in row.get("sites", {}).items()}
    seen = {
        client for row in facts.rows for key in ("participants", "dropped") for client in row.get(key, ())
    }
    return {client: sites.get(client, str(client)) for client in sorted(seen | sites.keys())}
