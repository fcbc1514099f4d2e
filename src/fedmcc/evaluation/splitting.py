"""A cluster divided into parts by the features of its images."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Float32

from fedmcc.evaluation.assignments import Soft
from fedmcc.evaluation.geometry import MIN_SPREAD, Geometry
from fedmcc.numerics import kmeans
from fedmcc.numerics.kmeans import unit_rows

Rows = Float32[np.ndarray, "n d"]
Divided = Float[np.ndarray, "n columns"]  # soft assignments with a column for each part

SEED = 0  # of the k-means that finds the parts
DIGITS = 6  # of the numbers that are stored


@dataclass(frozen=True)
class Split:
    """The parts of a cluster: their numbers (the first is that of the cluster), centres and spreads."""

    parts: tuple[int, ...]
    centres: tuple[tuple[float, ...], ...]  # unit vectors of features
    spreads: tuple[float, ...]  # median distance of the images of each part
    merged: Mapping[int, int] = field(default_factory=dict)  # merges that were made before

    def divide(self, assignments: Soft, rows: Rows) -> Divided:
        """Give the soft assignment to the cluster to the part with the nearest centre, in new columns."""
        nearest = (unit_rows(rows) @ np.array(self.centres, dtype=np.float32).T).argmax(axis=1)
        shares = np.eye(len(self.parts), dtype=assignments.dtype)[nearest] * assignments[:, [self.parts[0]]]
        divided = np.concatenate([assignments, shares[:, 1:]], axis=1)
        divided[:, self.parts[0]] = shares[:, 0]
        return divided

    def extend(self, geometry: Geometry) -> Geometry:
        """The geometry with the parts in place of the cluster, and of those merged into it."""
        centres = np.concatenate([geometry.centres, np.array(self.centres[1:], dtype=np.float32)])
        spread = np.concatenate([geometry.spread, np.array(self.spreads[1:], dtype=np.float32)])
        centres[self.parts[0]], spread[self.parts[0]] = self.centres[0], self.spreads[0]
        for source in (source for source, target in self.merged.items() if target == self.parts[0]):
            centres[source], spread[source] = 0, MIN_SPREAD  # nearest to no image
        return Geometry(centres, spread, geometry.limit, geometry.temperature)


def split_rows(rows: Rows, numbers: tuple[int, ...], merged: Mapping[int, int]) -> Split:
    """Divide the images of a cluster by k-means of their features, into as many parts as there are numbers.

    The largest part keeps the number of the cluster.
    """
    unit = unit_rows(rows)
    labels = kmeans.fit(unit, len(numbers), SEED).labels_
    order = np.argsort(-np.bincount(labels, minlength=len(numbers)), kind="stable")
    centres, spreads = [], []
    for part in order:
        own = unit[labels == part]
        centre = unit_rows(own.mean(axis=0, keepdims=True))[0]
        centres.append(tuple(round(float(value), DIGITS) for value in centre))
        spreads.append(max(round(float(np.median(1 - own @ centre)), DIGITS), MIN_SPREAD))
    return Split(numbers, tuple(centres), tuple(spreads), dict(merged))
