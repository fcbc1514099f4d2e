"""Which clients hold the images at the nodes of a graph, and what a division into parts says about it.

Nodes are prototypes. Masses are numbers of images, or shares of them. docs/decisions/0029 and 0031.
"""

import numpy as np
from jaxtyping import Float64, Int

MIN_CONCENTRATION = 0.2  # from which clients hold different images

Masses = Float64[np.ndarray, "*rows clients"]  # of each client at each node or part


def concentration(masses: Float64[np.ndarray, "n clients"], images: float) -> float:
    """How much clients differ in the nodes they use: about 0 by chance, 1 if no two clients share a node.

    It is the mean squared share of a client, scaled so that it is 0 if all clients hold the same. `images` is
    the number of images at a node on average: the shares of few images also differ by chance.
    """
    total = masses.sum()
    if not total:
        return 0.0
    shares = masses / np.maximum(masses.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    found = float((masses * shares).sum() / total)
    alike = float(np.square(masses.sum(axis=0) / total).sum())
    return (found - alike) / (1 - alike) - 1 / images if alike < 1 else 0.0


def information(masses: Masses) -> Float64[np.ndarray, "*rows"]:
    """A part's contribution to the mutual information of part and client, Σ m log(m / Σ m), in nats.

    The sum over all parts minus that of a single part is the mutual information, if masses add up to 1.
    Multiplied masses multiply it.
    """
    sums = masses.sum(axis=-1, keepdims=True)
    shares = masses / np.maximum(sums, np.finfo(float).tiny)
    return np.asarray((masses * np.log(np.where(masses > 0, shares, 1.0))).sum(axis=-1))


class PartProfiles:
    """The masses of the clients in each part, while single nodes move between parts."""

    def __init__(
        self, nodes: Float64[np.ndarray, "n clients"], assigned: Int[np.ndarray, " n"], parts: int
    ) -> None:
        self._nodes = nodes
        self._parts = np.eye(parts)[assigned].T @ nodes
        self._information = information(self._parts)

    def gains(self, node: int, old: int) -> Float64[np.ndarray, " parts"]:
        """How much the information increases if the node moves from its part to each other one."""
        lost = information(self._without(node, old)) - self._information[old]
        gained: np.ndarray = information(self._parts + self._nodes[node]) - self._information + lost
        return gained

    def move(self, node: int, old: int, new: int) -> None:
        """Move a node to another part."""
        self._parts[old] = self._without(node, old)
        self._parts[new] += self._nodes[node]
        self._information[[old, new]] = information(self._parts[[old, new]])

    def _without(self, node: int, old: int) -> Float64[np.ndarray, " clients"]:
        rest: np.ndarray = np.maximum(self._parts[old] - self._nodes[node], 0)  # rounding may be negative
        return rest
