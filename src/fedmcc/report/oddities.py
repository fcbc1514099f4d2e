"""Images that deserve a look: outliers, doubtful ones with their second choice, and near-duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmcc.report.clusters import Cluster
from fedmcc.report.gallery import Album, GalleryImage

MAX_OUTLIERS, MAX_DOUBTFUL = 24, 24
MAX_GROUPS, MAX_PER_GROUP = 18, 6  # of near-duplicates
MAX_CONFIDENCE = 0.9  # of a doubtful image


@dataclass(frozen=True)
class Doubtful:
    """An image between two clusters."""

    image: GalleryImage
    first: Cluster
    second: Cluster
    confidence: float


@dataclass(frozen=True)
class Oddities:
    """Some images of each kind, and how many there are in all."""

    outliers: list[GalleryImage] = field(default_factory=list)
    outlier_count: int = 0
    doubtful: list[Doubtful] = field(default_factory=list)
    duplicates: list[list[GalleryImage]] = field(default_factory=list)
    group_count: int = 0


def find_oddities(album: Album, duplicates: Sequence[Sequence[str]]) -> Oddities:
    """The oddities of a run, as far as its tables show them."""
    outliers = _outliers(album)
    groups = _groups(album, duplicates)
    return Oddities(
        outliers=[album.image(row, _distance(album, row)) for row in outliers[:MAX_OUTLIERS]],
        outlier_count=len(outliers),
        doubtful=_doubtful(album),
        duplicates=[[album.image(row) for row in rows[:MAX_PER_GROUP]] for rows in groups[:MAX_GROUPS]],
        group_count=len(groups),
    )


def _outliers(album: Album) -> list[int]:
    """Rows of outliers, the farthest first."""
    outlier, distance = album.assignments.outlier, album.assignments.distance
    if outlier is None or distance is None:
        return []
    rows = np.flatnonzero(outlier)
    return [int(row) for row in rows[np.argsort(-distance[rows], kind="stable")]]


def _distance(album: Album, row: int) -> str:
    assert album.assignments.distance is not None
    return f"distance {album.assignments.distance[row]:.2f}"


def _doubtful(album: Album) -> list[Doubtful]:
    """The images of the lowest confidence, of all clusters."""
    confidence, second = album.assignments.confidence, album.assignments.second
    if confidence is None or second is None:
        return []
    rows = np.argsort(confidence, kind="stable")[:MAX_DOUBTFUL]
    return [
        Doubtful(
            album.image(row),
            album.clusters[int(album.assignments.clusters[row])],
            album.clusters[int(second[row])],
            float(confidence[row]),
        )
        for row in rows[confidence[rows] < MAX_CONFIDENCE].tolist()
    ]


def _groups(album: Album, duplicates: Sequence[Sequence[str]]) -> list[list[int]]:
    """The rows of each group of near-duplicates; the largest groups first."""
    if not duplicates:
        return []
    places = {name: row for row, name in enumerate(album.assignments.names)}
    groups = [[places[name] for name in names if name in places] for names in duplicates]
    return sorted((rows for rows in groups if len(rows) > 1), key=len, reverse=True)
