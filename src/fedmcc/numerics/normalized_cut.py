"""Normalised cuts: parts of a graph that hang together, found by its spectrum.

SciPy is imported where it computes: sites start a process for every message, and none of these cuts.
"""

import numpy as np
from jaxtyping import Float64, Int

from fedmcc.numerics import kmeans

Affinity = Float64[np.ndarray, "n n"]
Parts = Int[np.ndarray, " n"]

CANDIDATES = 20  # of k-means on the eigenvectors; each gives a candidate


def cut(affinity: Affinity, parts: int, balance: float = 1.0, seed: int = 0) -> Parts:
    """The part of each node: of several candidates the one with the least `cost`.

    The cut alone does not tell a class of images split in two, with two others merged, from the right one:
    both cut as little. The sizes do, where classes are about equally large.
    """
    from scipy.linalg import eigh

    nodes = len(affinity)
    if parts >= nodes:
        return np.arange(nodes)
    degrees = _degrees(affinity)
    normalised = affinity / np.sqrt(np.outer(degrees, degrees))
    _, vectors = eigh(normalised, subset_by_index=(nodes - parts, nodes - 1))
    rows = kmeans.unit_rows(vectors.astype(np.float32))
    candidates = [kmeans.fit(rows, parts, seed + start, restarts=1).labels_ for start in range(CANDIDATES)]
    return min(candidates, key=lambda candidate: cost(affinity, candidate, parts, balance))


def cost(affinity: Affinity, assigned: Parts, parts: int, balance: float) -> float:
    """The mean share of a part's edges that leave it, minus `balance` times the entropy of the sizes."""
    from scipy.special import entr

    members = np.eye(parts)[assigned]
    volumes = _degrees(affinity) @ members
    inside = np.einsum("ip,ij,jp->p", members, affinity, members)
    leaving = 1 - inside / np.maximum(volumes, np.finfo(float).tiny)
    return float(leaving.mean() - balance * entr(volumes / volumes.sum()).sum())


def _degrees(affinity: Affinity) -> Float64[np.ndarray, " n"]:
    degrees: np.ndarray = affinity.sum(axis=1)
    return degrees.clip(1e-12 * max(float(degrees.max()), np.finfo(float).tiny))
