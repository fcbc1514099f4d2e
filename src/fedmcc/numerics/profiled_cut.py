"""Cuts of a graph into parts whose nodes are connected and held by the same clients.

The score of a division is its modularity plus the share of the nodes' information about the client that the
parts keep: if clients hold classes in different proportions, all groups of images that form one class are
held in the same proportions. docs/decisions/0031; 0032 has when this is not so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from fedmcc.numerics.client_profiles import PartProfiles, information
from fedmcc.numerics.consensus import fill, move_nodes, used
from fedmcc.numerics.normalized_cut import Affinity, Parts, candidate_cuts

FIRST_PARTS = (6, 12)  # per part, into which the graph is cut before parts are joined
FIRST_CUTS = 2  # of each, with other first centres
MAX_EXCHANGES = 60  # in which a part is divided and others are joined
MIN_GAIN = 1e-6  # of an exchange: smaller ones may be rounding
MIN_KEPT = 0.25  # share of the information about the client that clusters of the images alone keep
MIN_EXCHANGE_RATE = 3.75  # information that is kept in addition, per modularity that is lost for it

Nodes = Int[np.ndarray, " _"]
Halves = tuple[Nodes, Nodes]


class Graph(NamedTuple):
    """Edges that add up to 1, and the images of each client at each node, scaled.

    The scale is such that the mutual information of node and client is 1.
    """

    affinity: Affinity
    profiles: Float64[np.ndarray, "n clients"]

    @classmethod
    def of(cls, affinity: Affinity, masses: Float64[np.ndarray, "n clients"]) -> "Graph":
        """The graph with these edges and numbers of images; clients must differ."""
        available = information(masses).sum() - information(masses.sum(axis=0))
        return cls(affinity / affinity.sum(), masses / available)


class Exchange(NamedTuple):
    """Some nodes move to a part; before that, all nodes of this part may move to another one."""

    gain: float
    nodes: Nodes
    part: int
    joined: int  # the part that gets the former nodes of `part`; `part` itself: they stay


def profiled_cut(
    affinity: Affinity, masses: Float64[np.ndarray, "n clients"], members: Sequence[int], parts: int
) -> Parts:
    """Divide the nodes into parts with a large `score`; masses are numbers of images, of clients that differ.

    Many small parts are joined step by step, then improved by exchanges. Of several first cuts, the best
    result is kept. An unused part gets half of another one, as in a consensus.
    """
    graph = Graph.of(affinity, masses)
    results = [improve(graph, join(graph, first, parts), parts) for first in _first_cuts(affinity, parts)]
    best = max(results, key=lambda assigned: score(graph, assigned, parts))
    member = np.repeat(np.arange(len(members)), members)
    return best if used(best, member, parts).all() else fill(affinity, best, member, parts)


class Quality(NamedTuple):
    """Two shares that speak for a division: both are at most 1, and 0 for a single part."""

    modularity: float  # edges within parts, beyond chance
    kept: float  # information about the client


def quality(graph: Graph, assigned: Parts, parts: int) -> Quality:
    """The modularity of a division, and the share of information about the client that its parts keep."""
    totals = _Totals.of(graph, assigned, parts)
    modularity = np.trace(totals.edges) - np.square(totals.volumes).sum()
    kept = totals.information.sum() - information(graph.profiles.sum(axis=0))
    return Quality(float(modularity), float(kept))


def score(graph: Graph, assigned: Parts, parts: int) -> float:
    """The sum of modularity and information kept, which `profiled_cut` makes large."""
    return sum(quality(graph, assigned, parts))


def clients_look_different(by_images: Quality) -> bool:
    """Whether clients differ in the look of their images, and hold all classes: each has all clusters.

    Clusters that were cut from the affinities alone then say next to nothing about the client.
    """
    return by_images.kept < MIN_KEPT


def classes_differ(by_images: Quality, by_clients: Quality) -> bool:
    """Whether a profiled cut is to be preferred to one by the affinities alone.

    It is not if clients differ in the look of their images, or if it divides what images connect.
    """
    gained, lost = by_clients.kept - by_images.kept, by_images.modularity - by_clients.modularity
    return not clients_look_different(by_images) and gained >= MIN_EXCHANGE_RATE * lost


def join(graph: Graph, assigned: Parts, parts: int) -> Parts:
    """Join the two parts that cost the least score, or gain the most, until so many are left."""
    count = int(assigned.max()) + 1
    totals, owner = _Totals.of(graph, assigned, count), np.arange(count)
    gains = np.stack([totals.joined_gains(part) for part in range(count)])
    for _ in range(count - parts):
        first, second = (int(index) for index in np.unravel_index(gains.argmax(), gains.shape))
        totals.join(first, second)
        owner[owner == second] = first
        gains[second] = gains[:, second] = -np.inf
        changed = np.where(np.isinf(gains[first]), -np.inf, totals.joined_gains(first))
        gains[first] = gains[:, first] = changed
    joined: Parts = np.unique(owner, return_inverse=True)[1].reshape(-1)[assigned]
    return joined


def improve(graph: Graph, assigned: Parts, parts: int) -> Parts:
    """Move single nodes and exchange groups of nodes as long as the score increases."""
    halves: dict[bytes, Halves | None] = {}  # by the nodes of a part: most stay the same
    for _ in range(MAX_EXCHANGES):
        profiles = PartProfiles(graph.profiles, assigned, parts)
        assigned = move_nodes(graph.affinity, assigned, parts, profiles=profiles)
        found = max(_exchanges(graph, assigned, parts, halves), key=lambda each: each.gain, default=None)
        if found is None or found.gain <= MIN_GAIN:
            break
        assigned = assigned.copy()
        assigned[assigned == found.part] = found.joined
        assigned[found.nodes] = found.part
    return assigned


class _Totals(NamedTuple):
    """Sums over the nodes of each part; information is that of its profile."""

    edges: Affinity
    volumes: Float64[np.ndarray, " parts"]
    profiles: Float64[np.ndarray, "parts clients"]
    information: Float64[np.ndarray, " parts"]

    @classmethod
    def of(cls, graph: Graph, assigned: Parts, parts: int) -> "_Totals":
        """The sums of these parts."""
        onto = np.eye(parts)[assigned]
        edges, profiles = onto.T @ graph.affinity @ onto, onto.T @ graph.profiles
        return cls(edges, edges.sum(axis=1), profiles, information(profiles))

    def joined_gains(self, part: int) -> Float64[np.ndarray, " parts"]:
        """How much the score increases if a part is joined with each other one."""
        gains = self.gains(self.edges[part], float(self.volumes[part]), self.profiles[part])
        gains[part] = -np.inf
        return gains

    def gains(
        self,
        edges: Float64[np.ndarray, " parts"],
        volume: float,
        profile: Float64[np.ndarray, " clients"],
    ) -> Float64[np.ndarray, " parts"]:
        """The same for a group of nodes with these edges to the parts, which belongs to none of them."""
        informed = information(self.profiles + profile) - self.information - information(profile)
        found: np.ndarray = 2 * (edges - volume * self.volumes) + informed
        return found

    def join(self, first: int, second: int) -> None:
        """Add the second part to the first and leave it empty."""
        for sums in (self.edges, self.edges.T, self.volumes, self.profiles):
            sums[first] += sums[second]
            sums[second] = 0
        self.information[first], self.information[second] = information(self.profiles[first]), 0


def _exchanges(
    graph: Graph, assigned: Parts, parts: int, halves: dict[bytes, Halves | None]
) -> Iterator[Exchange]:
    """For each part that can be halved, the best ways to move a half and to join two other parts instead."""
    totals = _Totals.of(graph, assigned, parts)
    joined = np.stack([totals.joined_gains(part) for part in range(parts)])
    for part in range(parts):
        own = assigned == part
        key = own.tobytes()
        if key not in halves:
            halves[key] = _halves(graph.affinity, np.flatnonzero(own))
        if (both := halves[key]) is None:
            continue
        to_parts = [np.bincount(assigned, graph.affinity[half].sum(axis=0), parts) for half in both]
        volumes = [float(edges.sum()) for edges in to_parts]
        profiles = [graph.profiles[half].sum(axis=0) for half in both]
        apart = 2 * (volumes[0] * volumes[1] - graph.affinity[np.ix_(*both)].sum())
        apart += information(profiles[0]) + information(profiles[1]) - totals.information[part]
        for half, edges, volume, profile in zip(both, to_parts, volumes, profiles, strict=True):
            gains = totals.gains(edges, volume, profile)
            gains[part] = -np.inf
            new = int(gains.argmax())
            yield Exchange(float(apart + gains[new]), half, new, new)
        others = np.delete(np.delete(joined, part, axis=0), part, axis=1)
        if others.size > 1:
            kept, freed = np.delete(np.arange(parts), part)[
                [*np.unravel_index(others.argmax(), others.shape)]
            ]
            yield Exchange(float(apart + others.max()), both[1], int(freed), int(kept))


def _halves(affinity: Affinity, nodes: Nodes) -> Halves | None:
    """Two halves of a part by the first eigenvector of its modularity matrix (Newman 2006)."""
    if len(nodes) < 2:
        return None
    degrees = affinity[nodes].sum(axis=1)
    excess = affinity[np.ix_(nodes, nodes)] - np.outer(degrees, degrees)
    excess -= np.diag(excess.sum(axis=1))
    first = np.linalg.eigh(excess).eigenvectors[:, -1] > 0
    return None if first.all() or not first.any() else (nodes[first], nodes[~first])


def _first_cuts(affinity: Affinity, parts: int) -> Iterator[Parts]:
    for factor in FIRST_PARTS:
        for cut in candidate_cuts(affinity, factor * parts, count=FIRST_CUTS):
            yield np.unique(cut, return_inverse=True)[1].reshape(-1)  # k-means may leave some empty
