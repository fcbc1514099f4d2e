"""Images with captions, and those that represent a cluster: the most typical and the least certain ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64

from fedmcc.data.base import ImageSet
from fedmcc.report.clusters import Cluster
from fedmcc.report.map_cache import ImageMap
from fedmcc.report.run_facts import Assignments
from fedmcc.report.thumbnails import thumbnail

MAX_IMAGES = 480  # of all clusters together: limits the size of the page
MAX_PER_STRIP, MIN_PER_STRIP = 12, 3  # a cluster has two strips: typical and uncertain

Scores = Float32[np.ndarray, " n"]


@dataclass(frozen=True)
class GalleryImage:
    """An image of the gallery with its caption."""

    url: str
    caption: str
    mismatched: bool  # its label differs from the class that its cluster is matched with
    similar: str = ""  # the most similar images, as places on the sprite sheet


@dataclass(frozen=True)
class Card:
    """A cluster with its images."""

    cluster: Cluster
    typical: list[GalleryImage]
    uncertain: list[GalleryImage]


@dataclass(frozen=True, eq=False)
class Album:
    """What the caption of an image is made of."""

    images: ImageSet
    assignments: Assignments
    image_map: ImageMap
    clusters: Mapping[int, Cluster]  # by number

    def image(self, row: int, *more: str) -> GalleryImage:
        """An image with its caption, to which facts may be added."""
        assignments, cluster = self.assignments, self.clusters[int(self.assignments.clusters[row])]
        caption, mismatched = [f"cluster {cluster.number}"], False
        if assignments.labels is not None and assignments.labels[row] >= 0:
            label = assignments.classes[assignments.labels[row]]
            caption.append(f"label {label}")
            mismatched = cluster.matched is not None and label != cluster.matched
        if assignments.confidence is not None:
            caption.append(f"confidence {assignments.confidence[row]:.2f}")
        if assignments.second is not None:
            caption.append(f"second choice {assignments.second[row]}")
        caption += [*more, f"image {assignments.names[row]}"]
        url, similar = thumbnail(np.asarray(self.images.images[row])), self.image_map.similar(row)
        return GalleryImage(url, ", ".join(caption), mismatched, " ".join(map(str, similar)))


def build_cards(
    images: ImageSet, assignments: Assignments, image_map: ImageMap, clusters: Sequence[Cluster]
) -> list[Card]:
    """A card for each non-empty cluster; if there are too many, for the largest ones."""
    filled = [cluster for cluster in clusters if cluster.size]
    max_cards = MAX_IMAGES // (2 * MIN_PER_STRIP)
    largest = set(sorted(filled, key=lambda cluster: -cluster.size)[:max_cards])
    count = min(MAX_PER_STRIP, max(MIN_PER_STRIP, MAX_IMAGES // (2 * max(len(filled), 1))))
    album = Album(images, assignments, image_map, {cluster.number: cluster for cluster in clusters})
    typicality = image_map.typicality
    confidence = typicality if assignments.confidence is None else assignments.confidence
    cards = []
    for cluster in (cluster for cluster in filled if cluster in largest):
        strips = _choose(assignments.clusters == cluster.number, typicality, confidence, count)
        typical, uncertain = ([album.image(int(row)) for row in rows] for rows in strips)
        cards.append(Card(cluster, typical, uncertain))
    return cards


def _choose(
    members: Bool[np.ndarray, " n"], typicality: Scores, confidence: Scores, count: int
) -> tuple[Int64[np.ndarray, " _"], Int64[np.ndarray, " _"]]:
    """The rows of the most typical and of the least certain members; no row is in both."""
    rows = np.flatnonzero(members)
    count = min(count, max(1, len(rows) // 2))
    typical = rows[np.argsort(-typicality[rows], kind="stable")[:count]]
    others = np.setdiff1d(rows, typical)
    return typical, others[np.argsort(confidence[others], kind="stable")[:count]]
