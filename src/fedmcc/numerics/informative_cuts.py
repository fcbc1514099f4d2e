"""Clusters of prototypes that keep what an image tells about its neighbour and about its owner.

`Informative.value` is what they maximise, by greedy merges and then by moves of single prototypes; nothing is
random. docs/clustering.md explains it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from fedmcc.numerics import kmeans

Affinity = Float64[np.ndarray, "j j"]
Holdings = Float64[np.ndarray, "owners j"]
Labels = Int64[np.ndarray, " j"]
Matrix = Float64[np.ndarray, "_ _"]
Terms = Float64[np.ndarray, "..."]

TINY = 1e-300  # so that 0 ln 0 = 0
MIN_GAIN = 1e-12  # of a move: less is rounding
MOST_OWNERS = 16  # more clients are grouped by what they hold: the time of a merge grows with the owners
RIDGE = 0.1  # of the classifier of owners; from .01 to 1 its agreement hardly changes


@dataclass(frozen=True, eq=False)
class Informative:
    """The affinities of prototypes, who holds them, and the signed weight of knowing the owner.

    `affinity` is the mean over images of p pᵀ, so that it sums to 1. `holdings` has the share of all images
    that each owner has at each prototype.
    """

    affinity: Affinity
    holdings: Holdings
    weight: float = 0.0

    def value(self, labels: Labels) -> float:
        """V = I(cluster; neighbour's cluster) + weight · I(cluster; owner); other clusters are one case."""
        groups = np.eye(labels.max() + 1)[labels]
        joint = groups.T @ self.affinity @ groups
        inside, sizes = np.diag(joint), joint.sum(axis=1)
        between = _term(1 - inside.sum(), 1 - np.square(sizes).sum())
        about_owner = self.weight * known_about_owner(self.holdings, labels)
        return float(_term(inside, sizes**2).sum() + between + about_owner)

    @cached_property
    def cuts(self) -> Int64[np.ndarray, "j j"]:
        """The cluster of each prototype after greedy merges; row m - 1 has m clusters.

        Each step joins the two clusters whose merge gives the largest V. The last cluster takes the place of
        the one that is gone, so that the leading blocks of all matrices are those in use.
        """
        joint, held, count = self.affinity.copy(), self.holdings.copy(), len(self.affinity)
        labels, cuts = np.arange(count), np.empty((count, count), dtype=np.int64)
        inside, sizes = np.diag(joint).copy(), joint.sum(axis=1)
        gains = np.stack([self._gains(own, inside, sizes, held, joint[own]) for own in range(count)])
        for left in range(count, 0, -1):
            cuts[left - 1] = labels
            if left == 1:
                break
            use = slice(left)
            between = 1 - inside[use].sum() - 2 * joint[use, use]
            total = _term(between, 1 - np.square(sizes[use]).sum() - 2 * np.outer(sizes[use], sizes[use]))
            total += gains[use, use]
            np.fill_diagonal(total, -np.inf)
            kept, gone = sorted(divmod(int(total.argmax()), left))
            inside[kept] += inside[gone] + 2 * joint[kept, gone]
            for each in (sizes, held.T, joint, joint.T):
                each[kept] += each[gone]
            for each in (inside, sizes, held.T, joint, joint.T, gains, gains.T):
                each[gone] = each[left - 1]
            labels[labels == gone] = kept
            labels[labels == left - 1] = gone
            use = slice(left - 1)
            new = self._gains(kept, inside[use], sizes[use], held[:, use], joint[kept, use])
            gains[kept, use] = gains[use, kept] = new
        return cuts

    def improved(self, labels: Labels) -> Labels:
        """Move single prototypes to other clusters while that gives a larger V; no cluster is emptied."""
        labels, groups = labels.copy(), np.eye(labels.max() + 1)[labels]
        degrees, own = self.affinity.sum(axis=1), np.diag(self.affinity)
        shared, held, members = self.affinity @ groups, self.holdings @ groups, groups.sum(axis=0)
        inside, sizes = (groups * shared).sum(axis=0), degrees @ groups
        moved = True
        while moved:
            moved = False
            for j, old in enumerate(labels):
                if members[old] == 1:
                    continue
                has = self.holdings[:, [j]]
                # Without the prototype, and then with it in each cluster.
                inside[old] -= 2 * shared[j, old] - own[j]
                sizes[old] -= degrees[j]
                held[:, [old]] -= has
                added, size = inside + 2 * shared[j] + own[j], sizes + degrees[j]
                added[old] -= 2 * own[j]  # `shared` still counts it there
                gains = self._terms(added, size, held + has) - self._terms(inside, sizes, held)
                rest = 1 - np.square(sizes).sum() - np.square(size) + np.square(sizes)
                gains += _term(1 - inside.sum() - added + inside, rest)
                new = int(gains.argmax())
                new = new if gains[new] > gains[old] + MIN_GAIN else old
                inside[new], sizes[new] = added[new], size[new]
                held[:, [new]] += has
                if new != old:
                    for each, part in ((shared, self.affinity[:, j]), (members, 1.0)):
                        each[..., old] -= part
                        each[..., new] += part
                    labels[j], moved = new, True
        return labels

    def _gains(self, own: int, inside: Terms, sizes: Terms, held: Matrix, joint: Terms) -> Terms:
        """What joining a cluster with each other one adds to V, without the term of different clusters."""
        terms = self._terms(inside, sizes, held)
        merged = self._terms(inside + inside[own] + 2 * joint, sizes + sizes[own], held + held[:, [own]])
        gains: Terms = merged - terms - terms[own]
        return gains

    def _terms(self, inside: Terms, sizes: Terms, held: Matrix) -> Terms:
        """What each cluster adds to V, without the term of different clusters."""
        about_owner = _term(held, held.sum(axis=0)).sum(axis=0) if self.weight else 0.0
        terms: Terms = _term(inside, sizes**2) + self.weight * about_owner
        return terms


def known_about_owner(holdings: Holdings, labels: Labels) -> float:
    """I(cluster; owner) in nats: how much the cluster of an image tells about who owns it."""
    held = holdings @ np.eye(labels.max() + 1)[labels]
    apart = np.outer(held.sum(axis=1), held.sum(axis=0))
    return float(_term(held, apart).sum())


def beyond_chance(holdings: Holdings, labels: Labels, images: float) -> float:
    """The share of what clusters tell about the owner that a finite number of images does not explain."""
    chance = float(labels.max()) * (len(holdings) - 1) / (2 * images)
    return max(0.0, 1 - chance / max(known_about_owner(holdings, labels), TINY))


def recognised(vectors: Float[np.ndarray, "j d"], holdings: Holdings, labels: Labels) -> float:
    """How well owners are recognised by what their prototypes have in common in all clusters; chance is 0.

    A device shifts the images of every class in the same way, another mix of classes does not. So a linear
    classifier learns the owners from the prototypes of all other clusters, relative to the mean of each.
    Clusters of a single owner tell nothing: their prototypes count as chance.
    """
    owners = (holdings / np.maximum(holdings.sum(axis=1, keepdims=True), TINY)).argmax(axis=0)
    residuals, several = np.zeros_like(vectors, dtype=np.float64), np.zeros(len(labels), dtype=bool)
    for cluster in range(labels.max() + 1):
        own = labels == cluster
        means = [vectors[own & (owners == owner)].mean(axis=0) for owner in np.unique(owners[own])]
        residuals[own], several[own] = vectors[own] - np.mean(means, axis=0), len(means) > 1
    guesses = np.full(len(labels), -1)
    for cluster in np.unique(labels[several]):
        own, others = labels == cluster, several & (labels != cluster)
        x, targets = residuals[others], np.eye(len(holdings))[owners[others]]
        targets /= np.maximum(targets.sum(axis=0), 1)  # all owners count alike
        moment = (x.T * targets.sum(axis=1)) @ x + RIDGE * np.eye(x.shape[1])
        guesses[own] = (residuals[own] @ np.linalg.solve(moment, x.T @ targets)).argmax(axis=1)
    tested = np.unique(owners[several])
    if len(tested) < 2:
        return 0.0
    recalls = [(guesses[several & (owners == owner)] == owner).mean() for owner in tested]
    return float((np.mean(recalls) - 1 / len(tested)) / (1 - 1 / len(tested)) * several.mean())


def grouped_owners(holdings: Holdings) -> Float64[np.ndarray, "groups j"]:
    """The holdings of at most MOST_OWNERS groups of owners with similar mixtures."""
    if len(holdings) <= MOST_OWNERS:
        return holdings
    images = holdings.sum(axis=1, keepdims=True)
    mixtures = np.sqrt(holdings / np.maximum(images, TINY)).astype(np.float32)
    labels = kmeans.fit(mixtures, MOST_OWNERS, 0, images[:, 0], restarts=1).labels_
    grouped: Matrix = np.eye(MOST_OWNERS)[labels].T @ holdings
    return grouped


def _term(joint: Any, expected: Any) -> Any:
    """x ln(x / y) of numbers or arrays, and 0 for x = 0."""
    joint = np.maximum(joint, TINY)
    return joint * np.log(joint / np.maximum(expected, TINY))
