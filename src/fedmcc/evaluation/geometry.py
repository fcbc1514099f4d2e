"""Where clusters are in the space of features, and which images are outliers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

from fedmcc.evaluation.assignments import Assignment, Judgement, Soft, second_choice
from fedmcc.numerics.kmeans import unit_rows

FALSE_ALARMS = 0.01  # expected fraction of outliers among images like those that the run scored
MIN_SPREAD = 1e-6  # of a cluster whose images are all the same

Rows = Float32[np.ndarray, "n d"]
Clusters = Int[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Geometry:
    """Centres of clusters on the unit sphere, and the limit of ordinary distances."""

    centres: Float32[np.ndarray, "k d"]  # 0: the cluster is empty
    spread: Float32[np.ndarray, " k"]  # median distance of its images
    limit: float  # of the distance, as a multiple of the spread; infinite for few images
    temperature: float = 1.0  # of soft assignments that predict the clusters of other views

    def judge(self, assignment: Assignment, rows: Rows, soft: Soft, merged: Mapping[int, int]) -> Judgement:
        """The second choice of each image, its distance to its cluster, and whether it is an outlier."""
        distance, scaled = self.distances(rows, assignment.clusters, merged)
        return Judgement(second_choice(soft), distance, scaled > self.limit)

    def distances(
        self, rows: Rows, clusters: Clusters, merged: Mapping[int, int]
    ) -> tuple[Float32[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        """Distance of each row to its cluster (of merged clusters the nearest), plain and by its spread."""
        all_distances = 1 - unit_rows(rows) @ self.centres.T
        scaled = all_distances / self.spread
        targets = np.array([merged.get(cluster, cluster) for cluster in range(len(self.centres))])
        scaled = np.where(targets[None] == clusters[:, None], scaled, np.float32(np.inf))
        nearest = scaled.argmin(axis=1)
        every = np.arange(len(rows))
        return all_distances[every, nearest].clip(0), scaled[every, nearest]


def fit_geometry(rows: Rows, clusters: Clusters, count: int, false_alarms: float = FALSE_ALARMS) -> Geometry:
    """Centres and spreads of clusters, with the limit that new images exceed at the given rate.

    The limit is a conformal quantile: a new image that is drawn like these exceeds it with at most this
    probability, up to the effect of the images on the centres.
    """
    unit = unit_rows(rows)
    centres = np.zeros((count, unit.shape[1]), dtype=np.float32)
    spread = np.ones(count, dtype=np.float32)
    for cluster in np.unique(clusters):
        own = unit[clusters == cluster]
        centres[cluster] = unit_rows(own.mean(axis=0, keepdims=True))[0]
        spread[cluster] = max(float(np.median(1 - own @ centres[cluster])), MIN_SPREAD)
    fitted = Geometry(centres, spread, np.inf)
    _, scaled = fitted.distances(rows, clusters, {})
    return Geometry(centres, spread, conformal_limit(scaled, false_alarms))


def conformal_limit(scores: Float32[np.ndarray, " n"], false_alarms: float) -> float:
    """The score that a new one, exchangeable with these, exceeds with at most this probability."""
    place = int(np.ceil((len(scores) + 1) * (1 - false_alarms)))
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else float("inf")


def mean_features(rows: Rows, clusters: Clusters, count: int) -> Float32[np.ndarray, "k d"]:
    """The mean of the features of each cluster; 0 for an empty one."""
    sums = np.zeros((count, rows.shape[1]), dtype=np.float64)
    np.add.at(sums, clusters, rows)
    sizes = np.bincount(clusters, minlength=count)
    return (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
