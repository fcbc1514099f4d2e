"""The clusters as a report shows them: sizes, classes, and the images that speak for each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from fedmcc.evaluation.clustering import cluster_sizes, match
from fedmcc.report.palette import NOTHING, palette
from fedmcc.report.run_facts import Assigned

Counts = Int64[np.ndarray, "clusters classes"]


@dataclass(frozen=True)
class Cluster:
    """One cluster."""

    number: int
    size: int
    colour: str
    matched: str | None  # the class that the best one-to-one matching gives it
    common: str | None  # its most frequent class
    share: float | None  # of its images, those of that class
    place: int | None  # of the matched class


def describe(assigned: Assigned, count: int) -> list[Cluster]:
    """All clusters in the order of the classes that they are matched with, then by number."""
    count = max(count, int(assigned.clusters.max()) + 1)
    sizes, colours, table = (
        cluster_sizes(assigned.clusters, count),
        palette(count),
        confusion(assigned, count),
    )
    matched = {} if assigned.labels is None else match(assigned.labels, assigned.clusters)
    found = []
    for number in range(count):
        place, held = matched.get(number), table[number] if len(assigned.classes) else np.zeros(1)
        total = int(held.sum())
        found.append(
            Cluster(
                number=number,
                size=int(sizes[number]),
                colour=colours[number],
                matched=None if place is None else assigned.classes[place],
                common=assigned.classes[int(held.argmax())] if total else None,
                share=float(held.max() / total) if total else None,
                place=place,
            )
        )
    return sorted(found, key=lambda cluster: (cluster.place is None, cluster.place or 0, cluster.number))


def confusion(assigned: Assigned, count: int) -> Counts:
    """How many images of each cluster (row) are of each class (column)."""
    table = np.zeros((count, len(assigned.classes)), dtype=np.int64)
    if assigned.labels is not None:
        known = assigned.labels >= 0
        np.add.at(table, (assigned.clusters[known], assigned.labels[known]), 1)
    return table


def class_colours(clusters: Sequence[Cluster], classes: int) -> list[str]:
    """Each class in the colour of the cluster that it is matched with, or else in one of its own."""
    own = {cluster.place: cluster.colour for cluster in clusters if cluster.place is not None}
    spare = iter(palette(len(clusters) + classes)[len(clusters) :])
    return [own.get(place) or next(spare, NOTHING) for place in range(classes)]
