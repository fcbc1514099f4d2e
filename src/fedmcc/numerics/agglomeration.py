"""Agglomerative clustering on a graph of nearest neighbours (Zhang et al., ECCV 2012), as JULE uses it.

scipy is imported inside the functions: a site starts a process for every message, and few need it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from fedmcc.numerics.neighbours import nearest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MIN_CLUSTERS_FOR_RIVALS = 100  # with fewer clusters, the affinity alone decides
ABSENT = (
    -1.0
)  # affinity of a cluster with itself, and of clusters that are merged; all others are not negative

Labels = Int64[np.ndarray, " n"]


def neighbour_graph(rows: Float[Tensor, "n d"], count: int) -> "csr_array":
    """W_ij = exp(-|x_i - x_j|² / sigma²) for the nearest rows j of i; sigma² is the mean squared distance."""
    from scipy.sparse import csr_array

    indices, distances = (found.cpu().numpy() for found in nearest(rows, count))
    squared = distances.astype(np.float64)
    variance = max(squared.mean(), np.finfo(np.float64).tiny) if squared.size else 1.0
    starts = np.arange(len(rows) + 1) * indices.shape[1]
    weights = np.exp(-squared / variance)
    return csr_array((weights.ravel(), indices.ravel(), starts), shape=(len(rows), len(rows)))


def first_clusters(rows: Float[Tensor, "n d"]) -> Labels:
    """The components of the graph that joins each row to its nearest one."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    indices = nearest(rows, 1)[0].cpu().numpy()
    starts = np.arange(len(rows) + 1) * indices.shape[1]
    graph = csr_array((np.ones(indices.size), indices.ravel(), starts), shape=(len(rows), len(rows)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def merge(graph: "csr_array", labels: Labels, clusters: int, rivals: int) -> Labels:
    """Merge two clusters at a time until `clusters` are left, and return labels from 0.

    The pair has the largest affinity plus, while there are many clusters, the mean distance of this affinity
    from those of the next nearest clusters, of which `rivals` are compared with the nearest included.
    """
    merging = Merging(graph, labels, rivals)
    while merging.count > clusters:
        merging.join(*merging.best_pair())
    merged = np.unique(merging.owner[labels], return_inverse=True)[1]
    return np.asarray(merged, dtype=np.int64).reshape(-1)


def cross_sums(graph: "csr_array", labels: Labels) -> Float[np.ndarray, "c c"]:
    """U_ji = 1ᵀ W_ij W_ji 1, where W_ij are the weights from the rows of cluster i to those of cluster j."""
    from scipy.sparse import csr_array

    count = len(labels)
    members = csr_array((np.ones(count), (np.arange(count), labels)))
    into, out = graph.T @ members, graph @ members
    sums: Any = members.T @ into.multiply(out)
    return np.asarray(sums.todense(), dtype=np.float64)


class Merging:
    """Affinities A(i, j) = U_ji / |i|² + U_ij / |j|² of clusters that are joined one pair after the other."""

    def __init__(self, graph: "csr_array", labels: Labels, rivals: int) -> None:
        self.sums, self.sizes = cross_sums(graph, labels), np.bincount(labels).astype(np.float64)
        self.count, self.owner = len(self.sizes), np.arange(len(self.sizes))
        directed = self.sums.T / np.square(self.sizes)[:, None]
        self.affinities = directed + directed.T
        np.fill_diagonal(self.affinities, ABSENT)
        self.rivals = min(rivals, self.count)
        self.nearest = self._largest(self.affinities)

    def best_pair(self) -> tuple[int, int]:
        """The two clusters to join."""
        score = self.nearest[:, 0]
        if self.count > MIN_CLUSTERS_FOR_RIVALS and self.rivals > 1:
            score = score + (score[:, None] - self.nearest[:, 1:]).mean(axis=1)
        chosen = int(score.argmax())
        return chosen, int(self.affinities[chosen].argmax())

    def join(self, a: int, b: int) -> None:
        """Add cluster b to cluster a.

        The column of a lacks products of weights of a with weights of b, as published: they need the graph.
        """
        self.sums[a] += self.sums[b]
        self.sums[:, a] += self.sums[:, b]
        self.sizes[a] += self.sizes[b]
        self.owner[self.owner == b] = a
        self.count -= 1
        self._update(a, b)

    def _update(self, a: int, b: int) -> None:
        """Compute the affinities of a, and the largest ones of all clusters for which they have changed."""
        before = np.maximum(self.affinities[a], self.affinities[b])
        self.affinities[b] = self.affinities[:, b] = ABSENT
        new = self.sums[:, a] / self.sizes[a] ** 2 + self.sums[a] / np.square(self.sizes)
        new[self.owner != np.arange(len(new))] = new[a] = ABSENT
        self.affinities[a] = self.affinities[:, a] = new
        largest = np.maximum(before, new)
        changed = (largest > 0) & (largest >= self.nearest[:, -1])
        changed[[a, b]] = True
        self.nearest[changed] = self._largest(self.affinities[changed])

    def _largest(self, affinities: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m rivals"]:
        """The largest affinities of each row, largest first."""
        most = self.rivals
        part = np.partition(affinities, affinities.shape[1] - most, axis=1)[:, -most:]
        return np.sort(part, axis=1)[:, ::-1]


def means(
    rows: Float[np.ndarray, "n d"], labels: Labels, smallest: int
) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " n"]]:
    """Mean of each cluster and new labels; the smallest joins the nearest until all have `smallest` rows."""
    sizes = np.bincount(labels)
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, labels, rows)
    while len(sizes) > 1 and sizes.min() < smallest:
        least = int(sizes.argmin())
        apart = np.linalg.norm(sums / sizes[:, None] - sums[least] / sizes[least], axis=1)
        apart[least] = np.inf
        near = int(apart.argmin())
        sums[near] += sums[least]
        sizes[near] += sizes[least]
        labels = np.where(labels == least, near, labels)
        labels = labels - (labels > least)
        sums, sizes = np.delete(sums, least, axis=0), np.delete(sizes, least)
    return sums / sizes[:, None], labels.astype(np.int64)
