"""The clusters as a report shows them: sizes, colours and the classes of their images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from fedmcc.evaluation.clustering import cluster_sizes, match
from fedmcc.report.palette import UNLABELLED_COLOUR, palette
from fedmcc.report.run_facts import Assignments

Counts = Int64[np.ndarray, "clusters classes"]


@dataclass(frozen=True)
class Cluster:
    """A cluster with its colour and the classes of its images."""

    number: int
    size: int
    colour: str
    matched: str | None  # class that the best one-to-one matching gives to the cluster
    common: str | None  # its most frequent class
    share: float | None  # fraction of its labelled images that are of the most frequent class
    matched_index: int | None  # index of the matched class
    name: str | None = None  # given by the user

    @property
    def title(self) -> str:
        """Its number, and its name if it has one."""
        return f"{self.number}: {self.name}" if self.name else f"{self.number}"


def describe(assignments: Assignments, count: int, names: Mapping[int, str] | None = None) -> list[Cluster]:
    """All clusters, ordered by the class that they are matched with, then by number."""
    count = max(count, int(assignments.clusters.max()) + 1)
    sizes, colours = cluster_sizes(assignments.clusters, count), palette(count)
    table = confusion(assignments, count)
    matching = {} if assignments.labels is None else match(assignments.labels, assignments.clusters)
    clusters = []
    for number in range(count):
        matched, counts = matching.get(number), table[number]
        labelled = int(counts.sum())
        clusters.append(
            Cluster(
                number=number,
                size=int(sizes[number]),
                colour=colours[number],
                matched=None if matched is None else assignments.classes[matched],
                common=assignments.classes[int(counts.argmax())] if labelled else None,
                share=float(counts.max() / labelled) if labelled else None,
                matched_index=matched,
                name=(names or {}).get(number),
            )
        )
    return sorted(clusters, key=_order)


def _order(cluster: Cluster) -> tuple[bool, int, int]:
    return cluster.matched_index is None, cluster.matched_index or 0, cluster.number


def confusion(assignments: Assignments, count: int) -> Counts:
    """Number of images of each cluster (row) and class (column)."""
    table = np.zeros((count, len(assignments.classes)), dtype=np.int64)
    if assignments.labels is not None:
        labelled = assignments.labels >= 0
        np.add.at(table, (assignments.clusters[labelled], assignments.labels[labelled]), 1)
    return table


def class_colours(clusters: Sequence[Cluster], classes: int) -> list[str]:
    """The colour of the cluster that each class is matched with, or a new colour if there is none."""
    matched = {cluster.matched_index: cluster.colour for cluster in clusters}
    unused = iter(palette(len(clusters) + classes)[len(clusters) :])
    return [matched.get(index) or next(unused, UNLABELLED_COLOUR) for index in range(classes)]
