"""Normalised cuts: spectral partitioning of a graph into densely connected parts.

SciPy is imported inside the functions: a site starts a process for every message, and none needs it.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from fedmcc.numerics import kmeans

Affinity = Float64[np.ndarray, "n n"]
Parts = Int[np.ndarray, " n"]
Balance = float | Literal["auto"]  # weight of equal sizes; auto: none are assumed

CANDIDATES = 20  # runs of k-means on the eigenvectors; the cheapest result is kept


class Modularity(NamedTuple):
    """The cost of a cut in which no sizes are assumed; a higher resolution prefers smaller parts."""

    resolution: float = 1.0


def cut(affinity: Affinity, parts: int, balance: Balance = "auto", seed: int = 0) -> Parts:
    """Assign each node to a part: of several candidate cuts, the one with the lowest `cost`.

    The weight of the cut alone cannot reject a result that splits one class and merges two others, since both
    cut about as little. The entropy of the sizes can, if the classes have about the same size; modularity can
    without this assumption.
    """
    choice = Modularity() if balance == "auto" else balance
    return cheapest(affinity, candidate_cuts(affinity, parts, seed), parts, choice)


def candidate_cuts(affinity: Affinity, parts: int, seed: int = 0, count: int = CANDIDATES) -> list[Parts]:
    """Cuts by k-means on the first eigenvectors of the normalised graph, with several first centres."""
    from scipy.linalg import eigh

    nodes = len(affinity)
    if parts >= nodes:
        return [np.arange(nodes)]
    degrees = degrees_of(affinity)
    normalised = affinity / np.sqrt(np.outer(degrees, degrees))
    _, vectors = eigh(normalised, subset_by_index=(nodes - parts, nodes - 1))
    rows = kmeans.unit_rows(vectors.astype(np.float32))
    return [model.labels_ for model in kmeans.fit_each(rows, parts, range(seed, seed + count))]


def cheapest(affinity: Affinity, cuts: Sequence[Parts], parts: int, choice: float | Modularity) -> Parts:
    """The cut with the lowest cost, by modularity or by a weight of equal sizes."""
    return min(cuts, key=lambda assigned: cost(affinity, assigned, parts, choice))


def cost(affinity: Affinity, assigned: Parts, parts: int, choice: float | Modularity) -> float:
    """Mean share of a part's edge weight that leaves it, minus a weight times the entropy of the sizes.

    Or minus the modularity (Newman 2006): the share of the edge weight within parts that exceeds what parts
    of these sizes have if edges join nodes at random. Both terms are shares of the same weight; the
    resolution multiplies the second one (Reichardt and Bornholdt 2006).
    """
    from scipy.special import entr

    volumes = np.bincount(assigned, degrees_of(affinity), parts)
    to_own_part = np.where(assigned[:, None] == assigned, affinity, 0).sum(axis=1)
    inside, sizes = np.bincount(assigned, to_own_part, parts), volumes / volumes.sum()
    if isinstance(choice, Modularity):
        return float(choice.resolution * np.square(sizes).sum() - inside.sum() / volumes.sum())
    leaving = 1 - inside / np.maximum(volumes, np.finfo(float).tiny)
    return float(leaving.mean() - choice * entr(sizes).sum())


def degrees_of(affinity: Affinity) -> Float64[np.ndarray, " n"]:
    """The sum of each row; isolated nodes have a small one, so that it can be divided by."""
    degrees: np.ndarray = affinity.sum(axis=1)
    return degrees.clip(1e-12 * max(float(degrees.max()), 1e-100))  # the product of two must not be 0
