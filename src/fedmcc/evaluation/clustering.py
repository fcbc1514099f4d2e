"""Scores of a clustering against labels: ACC, NMI and ARI; and the sizes of its clusters.

Images with label -1 are unlabelled and are not counted.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int64
from scipy.optimize import linear_sum_assignment
from scipy.special import entr
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from fedmcc.errors import InputError

Labels = Int[np.ndarray, " n"]
Labelled = Int[np.ndarray, " labelled"]


class ClusterScores(NamedTuple):
    """The three scores of the paper's tables, as fractions."""

    acc: float
    nmi: float
    ari: float


def score(labels: Labels | None, assigned: Labels) -> ClusterScores | None:
    """ACC, NMI and ARI; None if no image has a label."""
    if labels is None or not np.any(labels >= 0):
        return None
    return ClusterScores(accuracy(labels, assigned), nmi(labels, assigned), ari(labels, assigned))


def accuracy(labels: Labels, assigned: Labels) -> float:
    """ACC: share of images whose cluster is matched to their label by the best one-to-one matching."""
    labels, assigned = _labelled(labels, assigned)
    counts = contingency_matrix(labels, assigned)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def match(labels: Labels, assigned: Labels) -> dict[int, int]:
    """Label of each cluster in the best one-to-one matching; clusters without a label are left out."""
    labels, assigned = _labelled(labels, assigned)
    rows, columns = linear_sum_assignment(contingency_matrix(labels, assigned), maximize=True)
    pairs = zip(np.unique(assigned)[columns], np.unique(labels)[rows], strict=True)
    return dict(sorted((int(cluster), int(label)) for cluster, label in pairs))


def nmi(labels: Labels, assigned: Labels) -> float:
    """Mutual information, normalised by the arithmetic mean of the two entropies."""
    return float(normalized_mutual_info_score(*_labelled(labels, assigned)))


def ari(labels: Labels, assigned: Labels) -> float:
    """Adjusted Rand index: 1 for identical partitions, about 0 by chance."""
    return float(adjusted_rand_score(*_labelled(labels, assigned)))


def cluster_sizes(assigned: Labels, clusters: int) -> Int64[np.ndarray, " k"]:
    """Number of images in each cluster, including empty clusters."""
    return np.bincount(assigned, minlength=clusters).astype(np.int64)


def size_entropy(sizes: Int64[np.ndarray, " k"]) -> float:
    """Entropy of the cluster sizes, from 0 (all images in one cluster) to 1 (equal sizes)."""
    if len(sizes) < 2:
        return 1.0
    return float(entr(sizes / sizes.sum()).sum() / np.log(len(sizes)))


def _labelled(labels: Labels, assigned: Labels) -> tuple[Labelled, Labelled]:
    rows = labels >= 0
    if not rows.any():
        raise InputError("No image has a label: give labels, or use the scores that need none.")
    return labels[rows], assigned[rows]
