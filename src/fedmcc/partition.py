"""Who holds which images: pure functions from labels or groups to the rows of each client.

Labels serve to simulate clients; no client ever sees them. A new partition is a function and a line
in PARTITIONS.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from fedmcc.errors import InputError, unknown

Rows = Int64[np.ndarray, " m"]
Labels = Int64[np.ndarray, " n"]


@dataclass(frozen=True)
class Sharing:
    """How a simulation hands out its images."""

    name: str = "iid"  # iid, by_class, dirichlet or by_group
    clients: int = 1  # K
    alpha: float = 0.5  # of dirichlet: small is uneven
    uneven: float = 0.0  # of iid: spread of the logarithm of the clients' sizes
    smallest: int = 2  # images that every client has at least

    def __post_init__(self) -> None:
        if self.name not in PARTITIONS:
            raise unknown("partition", self.name, PARTITIONS)
        if self.clients < 1:
            raise InputError(f"partition.clients is {self.clients}: give 1 or more.")


def iid(labels: Labels, sharing: Sharing, draw: np.random.Generator) -> list[Rows]:
    """The same share of every class for each client, up to one image; `uneven` changes the sizes."""
    weights = np.exp(sharing.uneven * draw.standard_normal(sharing.clients))
    return _joined(
        _cut(draw.permutation(rows), weights, first) for first, rows in enumerate(_classes(labels))
    )


def by_class(labels: Labels, sharing: Sharing, draw: np.random.Generator) -> list[Rows]:
    """Every client has all images of C / K classes that follow one another, and of no other (D8)."""
    classes = _classes(labels)
    if sharing.clients > len(classes):
        raise InputError(
            f"{sharing.clients} clients cannot share {len(classes)} classes: lower partition.clients."
        )
    runs = np.array_split(np.arange(len(classes)), sharing.clients)
    return [np.sort(np.concatenate([classes[index] for index in run])) for run in runs]


def dirichlet(labels: Labels, sharing: Sharing, draw: np.random.Generator) -> list[Rows]:
    """Every class is spread over the clients by a draw from Dirichlet(alpha), until none is too small."""
    if sharing.alpha <= 0:
        raise InputError(f"partition.alpha is {sharing.alpha}: give a positive number.")
    for _ in range(1000):
        drawn = draw.dirichlet([sharing.alpha] * sharing.clients, len(_classes(labels)))
        pairs = zip(_classes(labels), drawn, strict=True)
        shards = _joined(_cut(draw.permutation(rows), weights, 0) for rows, weights in pairs)
        if min(map(len, shards)) >= sharing.smallest:
            return shards
    raise InputError(
        f"With alpha {sharing.alpha} no draw gives {sharing.clients} clients {sharing.smallest} images each: "
        "raise partition.alpha or lower partition.smallest."
    )


def by_group(labels: Labels, sharing: Sharing, draw: np.random.Generator) -> list[Rows]:
    """One client for each group, such as the hospital that an image comes from."""
    groups = _classes(labels)
    if sharing.clients != len(groups):
        raise InputError(
            f"The images are in {len(groups)} groups and there are {sharing.clients} clients: "
            f"set partition.clients to {len(groups)}."
        )
    return groups


Partition = Callable[[Labels, Sharing, np.random.Generator], list[Rows]]

PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "by_class": by_class,
    "dirichlet": dirichlet,
    "by_group": by_group,
}


def share(labels: Labels, sharing: Sharing, seed: int) -> list[Rows]:
    """The rows of each client."""
    shards = PARTITIONS[sharing.name](labels, sharing, np.random.default_rng(seed))
    least = min(map(len, shards))
    if least < sharing.smallest:
        raise InputError(
            f"A client would have {least} images, fewer than partition.smallest = {sharing.smallest}: "
            "have fewer clients or more images."
        )
    return shards


def holdings(labels: Labels, shards: list[Rows]) -> Int64[np.ndarray, "clients classes"]:
    """How many images of each class each client holds."""
    classes = np.unique(labels)
    return np.array([[int((labels[rows] == label).sum()) for label in classes] for rows in shards])


def _classes(labels: Labels) -> list[Rows]:
    """The rows of each class, in the order of the labels."""
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _cut(rows: Rows, weights: np.ndarray, first: int) -> list[Rows]:
    """The rows in pieces of sizes in proportion to the weights; `first` rotates who gets the odd row."""
    order = np.roll(np.arange(len(weights)), -first)
    bounds = np.round(np.cumsum(weights[order]) / weights.sum() * len(rows)).astype(int)
    pieces = np.split(rows, bounds[:-1])
    return [pieces[place] for place in np.argsort(order)]


def _joined(classes: Iterable[list[Rows]]) -> list[Rows]:
    """The rows of each client over all classes, sorted."""
    return [np.sort(np.concatenate(pieces)) for pieces in zip(*classes, strict=True)]
