"""A consensus of several cuts of one graph, in which every part is used.

Each node belongs to a member, which is one clustering of the same images. docs/decisions/0015, 0025 and 0026.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from fedmcc.numerics.client_profiles import PartProfiles
from fedmcc.numerics.normalized_cut import (
    CANDIDATES,
    Affinity,
    Balance,
    Modularity,
    Parts,
    candidate_cuts,
    cheapest,
    cut,
)

RESOLUTIONS = (1.0, 1.25, 1.5, 2.0)  # of the modularity; the first one with which all parts are used
MAX_SWEEPS = 50  # over all nodes, each of which may move to another part
Half = tuple[
    float, Int[np.ndarray, " m"]
]  # the share of its edge weight that leads to the other half, its nodes
MIN_GAIN = 1e-9  # of modularity by a move: smaller ones may be rounding


def consensus(affinity: Affinity, members: Sequence[int], parts: int, balance: Balance = "auto") -> Parts:
    """Cut the nodes of each member into parts, then the graph of all members' parts, and return the latter.

    The nodes of a member are consecutive. Members err in different places, so that their parts are connected
    most to those of the other members that contain the same images. Without an assumption about sizes,
    single nodes move finally: otherwise a member's part that holds two classes cannot be divided. Then the
    resolution rises until all parts are used; if that does not suffice, parts are divided.
    """
    if len(members) == 1:
        return cut(affinity, parts, balance)
    graph = _Members(affinity, members, parts)
    if balance != "auto":
        return graph.agreed(balance)
    results = []
    for resolution in RESOLUTIONS:
        results.append(move_nodes(affinity, graph.agreed(Modularity(resolution)), parts, resolution))
        if used(results[-1], graph.member, parts).all():
            return results[-1]
    return fill(affinity, results[0], graph.member, parts)


class _Members:
    """The graphs of the members, with candidate cuts of each."""

    def __init__(self, affinity: Affinity, members: Sequence[int], parts: int) -> None:
        self.affinity, self.parts = affinity, parts
        self.member = np.repeat(np.arange(len(members)), members)  # of each node
        self.graphs = [affinity[np.ix_(own, own)] for own in (self.member == m for m in range(len(members)))]
        self.cuts = [candidate_cuts(own, parts, CANDIDATES * m) for m, own in enumerate(self.graphs)]

    def agreed(self, choice: float | Modularity) -> Parts:
        """The cut of the graph whose nodes are the parts of all members."""
        own_cuts = [
            cheapest(graph, cuts, self.parts, choice)
            for graph, cuts in zip(self.graphs, self.cuts, strict=True)
        ]
        nodes = self.member * self.parts + np.concatenate(own_cuts)
        onto = np.eye(len(own_cuts) * self.parts)[nodes]
        joined = onto.T @ self.affinity @ onto
        found: Parts = cheapest(joined, candidate_cuts(joined, self.parts), self.parts, choice)[nodes]
        return found


def used(assigned: Parts, member: Parts, parts: int) -> Bool[np.ndarray, " parts"]:
    """Whether most members have nodes in a part: an image has the part that has most of all its members."""
    members = int(member.max()) + 1
    present = np.zeros((parts, members), dtype=bool)
    present[assigned, member] = True
    most: np.ndarray = present.sum(axis=1) > members / 2
    return most


def fill(affinity: Affinity, assigned: Parts, member: Parts, parts: int) -> Parts:
    """Give each unused part half of another one: the half that is least connected to the other half.

    An unused part stays if no other one can be divided so that all members have nodes in both halves.
    """
    assigned = assigned.copy()
    halves: dict[bytes, Half | None] = {}  # by the nodes of a part: most stay the same
    for unused in np.flatnonzero(~used(assigned, member, parts)):
        others = np.flatnonzero(used(assigned, member, parts))
        for nodes in (assigned == part for part in others):
            if nodes.tobytes() not in halves:
                halves[nodes.tobytes()] = _half(affinity, nodes, member)
        found = [half for part in others if (half := halves[(assigned == part).tobytes()]) is not None]
        if not found:
            break
        nodes, onto = assigned == unused, (assigned[:, None] == others).astype(float)
        assigned[nodes] = others[(affinity[nodes] @ onto).argmax(axis=1)]
        assigned[min(found, key=lambda half: half[0])[1]] = unused
    return assigned


def _half(affinity: Affinity, nodes: Bool[np.ndarray, " n"], member: Parts) -> Half | None:
    """The nodes of half a part, and the share of a half's edge weight that leads to the other one."""
    rows = np.flatnonzero(nodes)
    if len(rows) < 2:
        return None
    second = cut(affinity[np.ix_(rows, rows)], 2, balance=0.0) == 1
    halves = rows[second], rows[~second]
    if any(len(np.unique(member[half])) < member.max() + 1 for half in halves):
        return None
    volumes = [affinity[half].sum() for half in halves]
    return float(affinity[np.ix_(*halves)].sum() / max(min(volumes), np.finfo(float).tiny)), halves[0]


def move_nodes(
    affinity: Affinity,
    assigned: Parts,
    parts: int,
    resolution: float = 1.0,
    profiles: PartProfiles | None = None,
) -> Parts:
    """Visit the nodes in turn and move each to the part that increases the modularity most.

    With the profiles of the parts, their information about the client is added to it. It ends when no move
    increases the sum, or after many sweeps. No part loses its last node.
    """
    assigned, degrees, onto = assigned.copy(), affinity.sum(axis=1), np.eye(parts)[assigned]
    nodes, volumes, to_parts = onto.sum(axis=0), degrees @ onto, affinity @ onto
    total, moved = degrees.sum(), bool(degrees.any())
    for _ in range(MAX_SWEEPS):
        if not moved:
            break
        moved = False
        for node, old in enumerate(assigned.tolist()):
            closer = to_parts[node] - to_parts[node, old] + affinity[node, node]
            expected = resolution * degrees[node] * (volumes - volumes[old] + degrees[node]) / total
            gains = 2 * (closer - expected) / total  # of modularity
            if profiles is not None:
                gains += profiles.gains(node, old)
            gains[old] = 0
            new = int(gains.argmax())
            if nodes[old] > 1 and gains[new] > MIN_GAIN:
                assigned[node], moved = new, True
                nodes[[old, new]] += (-1, 1)
                volumes[[old, new]] += (-degrees[node], degrees[node])
                to_parts[:, [old, new]] += affinity[:, [node]] * (-1, 1)
                if profiles is not None:
                    profiles.move(node, old, new)
    return assigned
