"""The clusters of a run and their images, as the service shows them."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Int64

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.report.clusters import Cluster, describe
from fedmcc.report.map_cache import load_map
from fedmcc.report.map_compute import check_same_images
from fedmcc.report.palette import palette
from fedmcc.report.run_facts import Assignments, read_run
from fedmcc.report.thumbnails import thumbnail
from fedmcc.runs.clusters import Edits, load_edits
from fedmcc.runs.directory import Run
from fedmcc.runs.scoring import scored_images
from fedmcc.serving.schemas import ClusterSummary, MemberImage

Order = Literal["typical", "doubtful", "outliers"]
MAX_SUMMARY_IMAGES = 600  # in the list of all clusters
MAX_TYPICAL = 12  # of a cluster in that list

Rows = Int64[np.ndarray, " _"]


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Clusters that were not merged into others, and the images in them."""

    clusters: dict[int, Cluster]
    assignments: Assignments | None
    typicality: np.ndarray | None  # higher: nearer to the centre of its cluster
    images: ImageSet | None  # None: they cannot be read here

    def rows(self, cluster: int, order: Order) -> Rows:
        """The images of a cluster, the first ones first."""
        assignments = self.assignments
        if assignments is None or self.typicality is None:
            return np.zeros(0, dtype=np.int64)
        rows = np.flatnonzero(assignments.clusters == cluster)
        if order == "outliers":
            rows = rows[assignments.outlier[rows]] if assignments.outlier is not None else rows[:0]
        keys = -self.typicality
        if order == "doubtful":
            keys = -keys if assignments.confidence is None else assignments.confidence
        return np.asarray(rows[np.argsort(keys[rows], kind="stable")])

    def members(self, rows: Rows) -> list[MemberImage]:
        """The images at these rows with their thumbnails; none if images cannot be read."""
        return [] if self.images is None else [self._member(self.images, int(row)) for row in rows]

    def summaries(self) -> list[ClusterSummary]:
        """Every cluster with its most typical images."""
        total = len(self.assignments) if self.assignments is not None else 0
        count = min(MAX_TYPICAL, max(1, MAX_SUMMARY_IMAGES // max(len(self.clusters), 1)))
        return [
            ClusterSummary(
                cluster=number,
                name=cluster.name,
                title=cluster.title,
                colour=cluster.colour,
                size=cluster.size,
                share=cluster.size / total if total else 0.0,
                typical=self.members(self.rows(number, "typical")[:count]),
            )
            for number, cluster in sorted(self.clusters.items())
        ]

    def _member(self, images: ImageSet, row: int) -> MemberImage:
        found = self.assignments
        assert found is not None
        return MemberImage(
            image=found.names[row],
            confidence=None if found.confidence is None else round(float(found.confidence[row]), 4),
            second=None if found.second is None else int(found.second[row]),
            outlier=None if found.outlier is None else bool(found.outlier[row]),
            thumbnail=thumbnail(np.asarray(images.images[row])),
        )


def load_catalogue(run: Run, images: ImageSet | None) -> Catalogue:
    """The clusters of a run with its names and merges, of which its table may not know yet."""
    facts, edits = read_run(run.path), load_edits(run)
    assignments = None if facts.assignments is None else _merged(facts.assignments, edits)
    if assignments is None:
        colours = palette(facts.clusters)
        every = [
            Cluster(number, 0, colours[number], None, None, None, None, edits.names.get(number))
            for number in range(facts.clusters)
        ]
        return Catalogue(_kept(every, edits), None, None, None)
    image_map = load_map(run)
    typicality = _typicality(assignments) if image_map is None else image_map.typicality
    clusters = _kept(describe(assignments, facts.clusters, edits.names), edits)
    return Catalogue(clusters, assignments, typicality, images)


def load_run_images(run: Run) -> tuple[ImageSet | None, str | None]:
    """The images that the run scored; None and a notice if they cannot be read here."""
    assignments = read_run(run.path).assignments
    if assignments is None:
        return None, "The images of the run are at its sites and cannot be shown here."
    try:
        images = scored_images(config.load(run.config_file))
        check_same_images(assignments, images)
    except (InputError, OSError) as error:
        return None, f"The images of the run cannot be shown. {error}"
    return images, None


def _kept(clusters: list[Cluster], edits: Edits) -> dict[int, Cluster]:
    return {cluster.number: cluster for cluster in clusters if cluster.number not in edits.merged}


def _merged(assignments: Assignments, edits: Edits) -> Assignments:
    """Assignments after merges."""
    clusters = np.array(assignments.clusters)
    for source, target in edits.merged.items():
        clusters[assignments.clusters == source] = target
    return replace(assignments, clusters=clusters)


def _typicality(assignments: Assignments) -> np.ndarray:
    """How typical each image is, as far as the table shows it."""
    if assignments.distance is not None:
        return -assignments.distance
    if assignments.confidence is not None:
        return assignments.confidence
    return np.zeros(len(assignments), dtype=np.float32)
