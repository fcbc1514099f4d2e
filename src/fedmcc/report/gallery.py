"""Which images speak for a cluster: those at its heart, and those it is least sure of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64

from fedmcc.data.base import ImageSet
from fedmcc.report.clusters import Cluster
from fedmcc.report.map_cache import Landscape
from fedmcc.report.run_facts import Assigned
from fedmcc.report.thumbnails import thumbnail

MOST_PICTURES = 480  # in all: what a page carries
ENOUGH, FEWEST = 12, 3  # pictures of each kind and cluster

Order = Float32[np.ndarray, " n"]


@dataclass(frozen=True)
class Shown:
    """A picture of the gallery."""

    url: str
    caption: str
    odd: bool  # its label is not its cluster's


@dataclass(frozen=True)
class Card:
    """A cluster with its pictures."""

    cluster: Cluster
    typical: list[Shown]
    uncertain: list[Shown]


def build_cards(
    images: ImageSet, assigned: Assigned, landscape: Landscape, clusters: Sequence[Cluster]
) -> list[Card]:
    """A card for each cluster that has images, the largest ones where there are too many."""
    filled = [cluster for cluster in clusters if cluster.size]
    most = MOST_PICTURES // (2 * FEWEST)
    largest = set(sorted(filled, key=lambda cluster: -cluster.size)[:most])
    count = min(ENOUGH, max(FEWEST, MOST_PICTURES // (2 * max(len(filled), 1))))
    doubt = landscape.typicality if assigned.confidence is None else assigned.confidence
    cards = []
    for cluster in (cluster for cluster in filled if cluster in largest):
        typical, uncertain = _chosen(
            assigned.clusters == cluster.number, (landscape.typicality, doubt), count
        )
        shown = [
            [_shown(images, assigned, cluster, int(row)) for row in rows] for rows in (typical, uncertain)
        ]
        cards.append(Card(cluster, *shown))
    return cards


def _chosen(
    own: Bool[np.ndarray, " n"], orders: tuple[Order, Order], count: int
) -> tuple[Int64[np.ndarray, " _"], Int64[np.ndarray, " _"]]:
    """The rows that come last in the first order and first in the second; no image is in both."""
    rows = np.flatnonzero(own)
    count = min(count, max(1, len(rows) // 2))
    typical = rows[np.argsort(-orders[0][rows], kind="stable")[:count]]
    rest = np.setdiff1d(rows, typical)
    return typical, rest[np.argsort(orders[1][rest], kind="stable")[:count]]


def _shown(images: ImageSet, assigned: Assigned, cluster: Cluster, row: int) -> Shown:
    words, odd = [f"cluster {cluster.number}"], False
    if assigned.labels is not None and assigned.labels[row] >= 0:
        label = assigned.classes[assigned.labels[row]]
        words.append(f"label {label}")
        odd = cluster.matched is not None and label != cluster.matched
    if assigned.confidence is not None:
        words.append(f"confidence {assigned.confidence[row]:.2f}")
    words.append(f"image {assigned.names[row]}")
    return Shown(thumbnail(np.asarray(images.images[row])), ", ".join(words), odd)
