"""Normalised cuts: spectral partitioning of a graph into densely connected parts.

SciPy is imported inside the functions: a site starts a process for every message, and none needs it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int

from fedmcc.numerics import kmeans

Affinity = Float64[np.ndarray, "n n"]
Parts = Int[np.ndarray, " n"]
Balance = float | Literal["auto"]  # weight of equal sizes; auto: none are assumed

CANDIDATES = 20  # runs of k-means on the eigenvectors; the cheapest result is kept
MAX_SWEEPS = 50  # over all nodes, each of which may move to another part
MIN_GAIN = 1e-9  # of modularity by a move: smaller ones may be rounding


def cut(affinity: Affinity, parts: int, balance: Balance = "auto", seed: int = 0) -> Parts:
    """Assign each node to a part: of several candidate cuts, the one with the lowest `cost`.

    The weight of the cut alone cannot reject a result that splits one class and merges two others, since both
    cut about as little. The entropy of the sizes can, if the classes have about the same size; modularity can
    without this assumption.
    """
    from scipy.linalg import eigh

    nodes = len(affinity)
    if parts >= nodes:
        return np.arange(nodes)
    degrees = _degrees(affinity)
    normalised = affinity / np.sqrt(np.outer(degrees, degrees))
    _, vectors = eigh(normalised, subset_by_index=(nodes - parts, nodes - 1))
    rows = kmeans.unit_rows(vectors.astype(np.float32))
    models = kmeans.fit_each(rows, parts, range(seed, seed + CANDIDATES))
    candidates: list[Parts] = [model.labels_ for model in models]
    return min(candidates, key=lambda candidate: cost(affinity, candidate, parts, balance))


def consensus(affinity: Affinity, members: Sequence[int], parts: int, balance: Balance = "auto") -> Parts:
    """Cut the nodes of each member into parts, then the graph of all members' parts, and return the latter.

    The nodes of a member are consecutive. Members err in different places, so that their parts are connected
    most to those of the other members that contain the same images. Without an assumption about sizes,
    single nodes move finally: otherwise a member's part that holds two classes cannot be divided.
    """
    ends = np.cumsum(members)
    nodes = np.empty(len(affinity), dtype=np.int64)
    for number, (size, end) in enumerate(zip(members, ends, strict=True)):
        own = slice(end - size, end)
        nodes[own] = number * parts + cut(affinity[own, own], parts, balance, seed=CANDIDATES * number)
    if len(members) == 1:
        return nodes
    onto = np.eye(len(members) * parts)[nodes]
    result: Parts = cut(onto.T @ affinity @ onto, parts, balance)[nodes]
    return move_nodes(affinity, result, parts) if balance == "auto" else result


def move_nodes(affinity: Affinity, assigned: Parts, parts: int) -> Parts:
    """Visit the nodes in turn and move each to the part that increases the modularity most.

    It ends when no move increases it, or after many sweeps. No part loses its last node.
    """
    assigned, degrees, onto = assigned.copy(), affinity.sum(axis=1), np.eye(parts)[assigned]
    nodes, volumes, to_parts = onto.sum(axis=0), degrees @ onto, affinity @ onto
    total, moved = degrees.sum(), bool(degrees.any())
    for _ in range(MAX_SWEEPS):
        if not moved:
            break
        moved = False
        for node, old in enumerate(assigned):
            closer = to_parts[node] - to_parts[node, old] + affinity[node, node]
            expected = degrees[node] * (volumes - volumes[old] + degrees[node]) / total
            gains = np.where(np.arange(parts) == old, 0, 2 * (closer - expected) / total)  # of modularity
            new = int(gains.argmax())
            if nodes[old] > 1 and gains[new] > MIN_GAIN:
                assigned[node], moved = new, True
                nodes[[old, new]] += (-1, 1)
                volumes[[old, new]] += (-degrees[node], degrees[node])
                to_parts[:, [old, new]] += affinity[:, [node]] * (-1, 1)
    return assigned


def cost(affinity: Affinity, assigned: Parts, parts: int, balance: Balance) -> float:
    """Mean share of a part's edge weight that leaves it, minus `balance` times the entropy of the sizes.

    With "auto", minus the modularity (Newman 2006): the share of the edge weight within parts that exceeds
    what parts of these sizes have if edges join nodes at random. Both terms are shares of the same weight.
    """
    from scipy.special import entr

    volumes = np.bincount(assigned, _degrees(affinity), parts)
    to_own_part = np.where(assigned[:, None] == assigned, affinity, 0).sum(axis=1)
    inside, sizes = np.bincount(assigned, to_own_part, parts), volumes / volumes.sum()
    if balance == "auto":
        return float(np.square(sizes).sum() - inside.sum() / volumes.sum())
    leaving = 1 - inside / np.maximum(volumes, np.finfo(float).tiny)
    return float(leaving.mean() - balance * entr(sizes).sum())


def _degrees(affinity: Affinity) -> Float64[np.ndarray, " n"]:
    degrees: np.ndarray = affinity.sum(axis=1)
    return degrees.clip(1e-12 * max(float(degrees.max()), np.finfo(float).tiny))
