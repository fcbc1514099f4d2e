"""The number of clusters, from the affinities of several over-clusterings of the same images.

The affinities between the prototypes of two members are the joint distribution of their assignments over all
images: they tell how far the members agree once each was merged into some number of clusters.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float32, Float64, Int

from fedmcc.numerics import kmeans
from fedmcc.numerics.normalized_cut import Affinity, degrees_of

Curve = Float64[np.ndarray, "points 4"]
Rows = Float32[np.ndarray, "_ d"]

COLUMNS = ("clusters", "score", "stability", "deviation")  # of a curve
RESAMPLES = 6  # of each member's prototypes
KEPT = 0.9  # share of the prototypes in a resample
STARTS = 4  # of the k-means of each cut
MAX_STEPS = 50  # of k-means


def curve(affinity: Affinity, members: Sequence[int], most: int) -> Curve:
    """Score, stability and its standard deviation over resamples, of each number of clusters up to `most`.

    Each member's prototypes, which are consecutive, are resampled and cut. Stability is the mean agreement of
    two members' cuts. Few clusters are stable easily, such as one group against all others: the score is the
    stability times the probability that two images are in different clusters.
    """
    samples = [_resample(affinity, members, most, seed) for seed in range(RESAMPLES)]
    rows = []
    for clusters in range(2, most + 1):
        means = np.array([_mean_scores(affinity, sample, clusters) for sample in samples])
        rows.append((clusters, *means.mean(axis=0), means[:, 1].std()))
    return np.array(rows, dtype=np.float64)


def ranked(found: Curve) -> list[int]:
    """All numbers of clusters of a curve, the highest score first."""
    order = np.argsort(-found[:, 1], kind="stable")
    return [int(clusters) for clusters in found[order, 0]]


def agreement(joint: Float64[np.ndarray, "k k"]) -> float:
    """The adjusted Rand index of two clusterings with this joint distribution of infinitely many images."""
    shares = joint / joint.sum()
    marginals = shares, shares.sum(axis=1), shares.sum(axis=0)
    together, first, second = (float((each**2).sum()) for each in marginals)
    chance = first * second
    return (together - chance) / max((first + second) / 2 - chance, np.finfo(float).tiny)


def separation(joint: Float64[np.ndarray, "k k"]) -> float:
    """The probability that two random images are in different clusters, as a mean of two clusterings."""
    shares = joint / joint.sum()
    return 1 - float((shares.sum(axis=0) ** 2).sum() + (shares.sum(axis=1) ** 2).sum()) / 2


class _Member:
    """Some prototypes of a member, with the first eigenvectors of their normalised graph."""

    def __init__(self, affinity: Affinity, nodes: Int[np.ndarray, " m"], most: int, seed: int) -> None:
        self.nodes, self.seed = nodes, seed
        own = affinity[np.ix_(nodes, nodes)]
        degrees = degrees_of(own)
        _, vectors = np.linalg.eigh(own / np.sqrt(np.outer(degrees, degrees)))
        self.vectors = vectors[:, ::-1][:, :most].astype(np.float32)

    def cut(self, clusters: int) -> Float64[np.ndarray, "n k"]:
        """The part of each prototype, as a row with a single 1."""
        if clusters >= len(self.nodes):
            return np.eye(len(self.nodes), clusters)
        rows = kmeans.unit_rows(self.vectors[:, :clusters])
        firsts = np.random.default_rng(self.seed).choice(len(rows), STARTS)
        found = [_spherical_kmeans(rows, _apart(rows, int(first), clusters)) for first in firsts]
        labels = max(found, key=lambda one: one[0])[1]
        parts: np.ndarray = np.eye(clusters)[labels]
        return parts


def _apart(rows: Rows, first: int, count: int) -> Rows:
    """Rows of which each is as orthogonal as possible to those before it, starting with the first."""
    chosen, nearest = [first], np.abs(rows @ rows[first])
    while len(chosen) < count:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, np.abs(rows @ rows[chosen[-1]]))
    return rows[chosen]


def _spherical_kmeans(rows: Rows, centres: Rows) -> tuple[float, Int[np.ndarray, " n"]]:
    """The sum of the cosines to the own centres, and the cluster of each row."""
    labels = np.full(len(rows), -1)
    for _ in range(MAX_STEPS):
        cosines = rows @ centres.T
        before, labels = labels, cosines.argmax(axis=1)
        if np.array_equal(before, labels):
            break
        sums = np.eye(len(centres), dtype=np.float32)[labels].T @ rows
        used = np.bincount(labels, minlength=len(centres)) > 0
        centres = np.where(used[:, None], kmeans.unit_rows(sums), centres)
    return float(cosines.max(axis=1).sum()), labels


def _resample(affinity: Affinity, members: Sequence[int], most: int, seed: int) -> list[_Member]:
    draw, found = np.random.default_rng(seed), []
    for size, end in zip(members, np.cumsum(members), strict=True):
        kept = np.sort(draw.choice(size, max(1, round(KEPT * size)), replace=False))
        found.append(_Member(affinity, end - size + kept, most, STARTS * seed))
    return found


def _mean_scores(affinity: Affinity, members: Sequence[_Member], clusters: int) -> tuple[float, float]:
    """Mean score and stability over the pairs of members."""
    cuts = [(member.nodes, member.cut(clusters)) for member in members]
    scores, stabilities = [], []
    for (one, first), (other, second) in combinations(cuts, 2):
        joint = first.T @ affinity[np.ix_(one, other)] @ second
        stabilities.append(agreement(joint))
        scores.append(stabilities[-1] * separation(joint))
    return float(np.mean(scores)), float(np.mean(stabilities))
