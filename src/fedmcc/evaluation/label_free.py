"""Scores without labels, to judge a run on unlabelled images."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int
from scipy.spatial.distance import pdist
from scipy.special import logsumexp
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import normalize

from fedmcc.evaluation.calibration import temper
from fedmcc.evaluation.clustering import cluster_sizes, size_entropy
from fedmcc.evaluation.features import Extracted

Rows = Float32[np.ndarray, "n d"]
Assignments = Float32[np.ndarray, "n k"]
Assigned = Int[np.ndarray, " n"]

MAX_COMPARED_IMAGES = 2000  # the scores over pairs take a sample of larger sets
BETTER_VIEWS = "Choose views that fit the images."
MIN_VARIANCE = 1e-3  # on the unit sphere, where evenly spread features have variance 1


class LabelFreeScores(NamedTuple):
    """The scores; None if a score is undefined or its input was not given."""

    confidence: float | None
    balance: float | None
    alignment: float | None
    uniformity: float | None
    silhouette: float | None


def score_without_labels(
    extracted: Extracted,
    seed: int,
    views: tuple[Rows, Rows] | None = None,
    temperature: float = 1.0,
) -> LabelFreeScores:
    """All scores of one extraction; `views` holds the features of two views of the same images."""
    features, assignments = extracted
    aligned = None if views is None else alignment(*views)
    if assignments is None:
        return LabelFreeScores(None, None, aligned, uniformity(features, seed), None)
    assigned = assignments.argmax(axis=1)
    return LabelFreeScores(
        confidence(temper(assignments, temperature)),
        size_entropy(cluster_sizes(assigned, assignments.shape[1])),
        aligned,
        uniformity(features, seed),
        silhouette(features, assigned, seed),
    )


def confidence(assignments: Assignments) -> float:
    """Mean of the largest soft assignment: 1 is certain, 1 / clusters is uniform."""
    return float(assignments.max(axis=1).mean(dtype=np.float64))


def alignment(first: Rows, second: Rows) -> float:
    """Mean squared distance between two views of an image on the unit sphere: 0 is best (Wang and Isola)."""
    distances = normalize(first.astype(np.float64)) - normalize(second.astype(np.float64))
    return float((distances**2).sum(axis=1).mean())


def uniformity(features: Rows, seed: int) -> float | None:
    """Log of the mean of exp(-2 d^2) over pairs on the unit sphere: 0 means collapse, lower is better."""
    rows = normalize(features[sample_rows(len(features), seed)].astype(np.float64))
    if len(rows) < 2:
        return None
    distances = pdist(rows, "sqeuclidean")
    return float(logsumexp(-2 * distances) - np.log(len(distances)))


def silhouette(features: Rows, assigned: Assigned, seed: int) -> float | None:
    """How much closer images are to their own cluster than to the next one, from -1 to 1, on a sample.

    None if the sample has a single cluster, or only clusters of one image.
    """
    rows = sample_rows(len(features), seed)
    if not 2 <= len(np.unique(assigned[rows])) < len(rows):
        return None
    return float(silhouette_score(normalize(features[rows].astype(np.float64)), assigned[rows]))


def collapse_warning(
    features: Rows, assigned: Assigned, clusters: int, merged: int = 0, remedy: str = BETTER_VIEWS
) -> str | None:
    """Explain what has collapsed and what to change; None if nothing has.

    `merged` clusters were emptied by the user. The remedy is for clusters that have collapsed.
    """
    variance = _variance(features)
    if len(features) > 1 and variance < MIN_VARIANCE:
        return (
            f"The features have collapsed: they are nearly the same for all images (variance {variance:.1g} "
            "of 1). Choose views that keep more of each image, or a smaller learning rate."
        )
    sizes = cluster_sizes(assigned, clusters)
    remaining, empty = clusters - merged, int((sizes == 0).sum()) - merged
    effective = float(np.exp(size_entropy(sizes) * np.log(clusters)))
    if effective > min(remaining, len(assigned)) / 2:
        return None
    return (
        f"The clustering has collapsed: {effective:.1f} of {remaining} clusters are effectively used, "
        f"{empty} are empty. {remedy}"
    )


def _variance(features: Rows) -> float:
    every = max(1, len(features) // MAX_COMPARED_IMAGES)
    return float(normalize(features[::every].astype(np.float64)).var(axis=0).sum())


def sample_rows(count: int, seed: int) -> Int[np.ndarray, " m"]:
    """The rows that scores over pairs compare: all, or a random sample."""
    if count <= MAX_COMPARED_IMAGES:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, MAX_COMPARED_IMAGES, replace=False))
