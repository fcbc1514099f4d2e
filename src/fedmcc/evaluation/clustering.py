"""Scores of a clustering against labels: ACC, NMI and ARI; and the sizes of its clusters.

Images with label -1 have none and do not count.
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
    """ACC: the share of images whose cluster is matched with their label, at the best matching."""
    labels, assigned = _labelled(labels, assigned)
    counts = contingency_matrix(labels, assigned)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def match(labels: Labels, assigned: Labels) -> dict[int, int]:
    """Cluster to label at the best matching, one to one; clusters in excess of the labels have none."""
    labels, assigned = _labelled(labels, assigned)
    rows, columns = linear_sum_assignment(contingency_matrix(labels, assigned), maximize=True)
    pairs = zip(np.unique(assigned)[columns], np.unique(labels)[rows], strict=True)
    return dict(sorted((int(cluster), int(label)) for cluster, label in pairs))


def nmi(labels: Labels, assigned: Labels) -> float:
    """Normalised mutual information, by the arithmetic mean of the two entropies."""
    return float(normalized_mutual_info_score(*_labelled(labels, assigned)))


def ari(labels: Labels, assigned: Labels) -> float:
    """Adjusted Rand index: 1 for the same partition, about 0 by chance."""
    return float(adjusted_rand_score(*_labelled(labels, assigned)))


def cluster_sizes(assigned: Labels, clusters: int) -> Int64[np.ndarray, " k"]:
    """How many images each cluster has, empty ones included."""
    return np.bincount(assigned, minlength=clusters).astype(np.int64)


def size_entropy(sizes: Int64[np.ndarray, " k"]) -> float:
    """Entropy of the cluster sizes from 0, all in one cluster, to 1, all equal."""
    if len(sizes) < 2:
        return 1.0
    return float(entr(sizes / sizes.sum()).sum() / np.log(len(sizes)))


def _labelled(labels: Labels, assigned: Labels) -> tuple[Labelled, Labelled]:
    known = labels >= 0
    if not known.any():
        raise InputError("No image has a label: only scores without labels can be computed.")
    return labels[known], assigned[known]
