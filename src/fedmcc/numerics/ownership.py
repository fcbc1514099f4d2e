"""A graph of all clients in which each client's edges count by its shares of their nodes.

Nodes are prototypes, and a client's share of a node is its part of the images there. docs/decisions/0029.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from fedmcc.numerics.consensus import consensus, move_nodes
from fedmcc.numerics.normalized_cut import Affinity, Balance, Modularity, Parts, cost

MIN_CONCENTRATION = 0.2  # from which clients hold different images
MARGIN = 0.001  # of modularity, by which the cut of a mixture must be better
MIXTURES = {0.0: 0.0, 0.35: MARGIN, 1.0: MARGIN}  # part of the whole graph: handicap of its cut

Masses = Float64[np.ndarray, "clients n"]  # of each client at each node: the row sums of its affinities


def concentration(masses: Masses, images: float) -> float:
    """How much clients differ in the nodes they use: about 0 by chance, 1 if no two clients share a node.

    It is the mean squared share of a client, scaled so that it is 0 if all clients hold the same. `images` is
    the number of images at a node on average: the shares of few images also differ by chance.
    """
    if not masses.any():
        return 0.0
    shares = _shares(masses)
    clients = masses.sum(axis=1) / masses.sum()
    found, alike = float((masses * shares).sum() / masses.sum()), float(np.square(clients).sum())
    return (found - alike) / (1 - alike) - 1 / images if alike < 1 else 0.0


def by_ownership(affinities: Iterable[Affinity], masses: Masses) -> Affinity:
    """The sum of the clients' affinities, each multiplied by the client's shares of both nodes."""
    total = np.zeros((masses.shape[1], masses.shape[1]))
    for affinity, share in zip(affinities, _shares(masses), strict=True):
        total += affinity * np.outer(share, share)
    return total


def _shares(masses: Masses) -> Masses:
    shares: Masses = masses / np.maximum(masses.sum(axis=0), np.finfo(float).tiny)
    return shares


def owned_consensus(
    owned: Affinity, whole: Affinity, members: Sequence[int], parts: int, balance: Balance
) -> Parts:
    """The consensus of the graph by ownership, unless that of a mixture or of the whole graph is better.

    Better is what costs less on the graph by ownership once single nodes have moved there. That graph has
    small groups without any edge to others, which its own cut separates first, so that it may leave two large
    classes together.
    """
    choice = Modularity() if balance == "auto" else balance
    found: list[tuple[float, Parts]] = []
    for part, margin in MIXTURES.items():
        mixed = (1 - part) * owned / owned.sum() + part * whole / whole.sum()
        assigned = consensus(mixed, members, parts, balance)
        best = move_nodes(owned, assigned, parts) if balance == "auto" else assigned
        found.append((cost(owned, best, parts, choice) + margin, assigned))
    return min(found, key=lambda each: each[0])[1]
