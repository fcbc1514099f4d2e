"""The map of the images as the page draws it: points, and what each may be coloured by."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

from fedmcc.report.clusters import class_colours, describe
from fedmcc.report.map_cache import Landscape
from fedmcc.report.palette import NOTHING, palette
from fedmcc.report.run_facts import Assigned, Facts

Mode = dict[str, Any]  # the names and colours of groups, and the group of every point


def draw_map(facts: Facts, assigned: Assigned, seen: Landscape) -> dict[str, Any]:
    """The points with their cluster, label and client; `sheet` and `names` wait for the images."""
    sure = assigned.confidence
    return {
        "x": [round(float(x), 2) for x in seen.points[:, 0]],
        "y": [round(float(y), 2) for y in seen.points[:, 1]],
        "modes": list(_modes(facts, assigned, seen.rows)),
        "confidence": None if sure is None else [round(float(value), 3) for value in sure[seen.rows]],
        "total": len(assigned),
        "sheet": None,
        "names": None,
    }


def _modes(facts: Facts, assigned: Assigned, rows: Int64[np.ndarray, " m"]) -> Iterator[Mode]:
    clusters = describe(assigned, facts.config.get("clusters") or 0)
    numbers = sorted(clusters, key=lambda cluster: cluster.number)
    colours = [cluster.colour for cluster in numbers]
    yield _mode("cluster", [str(cluster.number) for cluster in numbers], colours, assigned.clusters[rows])
    if assigned.labels is not None:
        labels, count = assigned.labels[rows], len(assigned.classes)
        colours = [*class_colours(clusters, count), NOTHING]
        yield _mode("label", [*assigned.classes, "none"], colours, np.where(labels < 0, count, labels))
    shares = facts.shares
    if shares is None or not facts.scored_itself or len(shares.clients) < 2:
        return
    owners = shares.owners()
    if len(owners) == len(assigned):
        yield _mode("client", list(shares.clients), palette(len(shares.clients)), owners[rows])


def _mode(key: str, names: list[str], colours: list[str], of: Int64[np.ndarray, " m"]) -> Mode:
    return {"key": key, "names": names, "colours": colours, "of": of.tolist()}
