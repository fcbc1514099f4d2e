"""The map of the images as map.js draws it: points, and the groups that they can be coloured by."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from fedmcc.report.clusters import Cluster, class_colours
from fedmcc.report.map_cache import ImageMap
from fedmcc.report.palette import UNLABELLED_COLOUR, palette
from fedmcc.report.run_facts import Assignments, Facts

Rows = Int64[np.ndarray, " m"]
Mode = dict[str, Any]  # names and colours of the groups, and the group of every point


def draw_map(
    facts: Facts, assignments: Assignments, clusters: Sequence[Cluster], image_map: ImageMap
) -> dict[str, Any]:
    """The points with their cluster, label and client; `sheet`, `names` and `similar` come with images."""
    rows, points, confidence = image_map.rows, image_map.points, assignments.confidence
    return {
        "x": [round(float(x), 2) for x in points[:, 0]],
        "y": [round(float(y), 2) for y in points[:, 1]],
        "modes": list(_modes(facts, assignments, clusters, rows)),
        "confidence": None if confidence is None else [round(float(value), 3) for value in confidence[rows]],
        "total": len(assignments),
        "sheet": None,
        "names": None,
        "similar": [],
        "order": np.argsort(-image_map.typicality[rows], kind="stable").tolist(),
    }


def _modes(facts: Facts, assignments: Assignments, clusters: Sequence[Cluster], rows: Rows) -> Iterator[Mode]:
    numbered = sorted(clusters, key=lambda cluster: cluster.number)
    colours = [cluster.colour for cluster in numbered]
    yield _mode("cluster", [cluster.title for cluster in numbered], colours, assignments.clusters[rows])
    if assignments.labels is not None:
        labels, count = assignments.labels[rows], len(assignments.classes)
        colours = [*class_colours(clusters, count), UNLABELLED_COLOUR]
        yield _mode("label", [*assignments.classes, "none"], colours, np.where(labels < 0, count, labels))
    partition = facts.partition
    if partition is None or not facts.scores_training_images or len(partition.clients) < 2:
        return
    names, count = list(partition.clients), len(assignments)
    if max((int(own.max()) for own in partition.rows if len(own)), default=0) < count:
        owners = partition.owners(count)[rows]
        further = ["no client"] if (owners == len(names)).any() else []
        colours = [*palette(len(names)), *[UNLABELLED_COLOUR for _ in further]]
        yield _mode("client", names + further, colours, owners)


def _mode(key: str, names: list[str], colours: list[str], groups: Rows) -> Mode:
    return {"key": key, "names": names, "colours": colours, "groups": groups.tolist()}
