"""Who holds which images: pure functions from labels or groups to the rows of each client.

Labels serve to simulate clients; no client ever sees them. A new partition is a function and a line
in PARTITIONS.
"""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from fedmcc.data.base import ImageSet, Labels
from fedmcc.errors import InputError, unknown

Rows = Int64[np.ndarray, " _"]  # clients have different numbers
Weights = Float64[np.ndarray, " clients"]
MAX_DIRICHLET_DRAWS = 1000  # attempts of dirichlet to give every client enough


@dataclass(frozen=True)
class PartitionOptions:
    """How a simulation hands out its images."""

    name: str = "iid"  # iid, by_class, dirichlet or by_group
    clients: int = 1  # K; by_group: 1 means as many as there are groups
    alpha: float = 0.5  # of dirichlet: small is uneven
    uneven: float = 0.0  # of iid: spread of the logarithm of the clients' sizes
    smallest: int = 2  # images that every client has at least

    def __post_init__(self) -> None:
        if self.name not in PARTITIONS:
            raise unknown("partition", self.name, PARTITIONS)
        for key, least in (("clients", 1), ("smallest", 2)):  # a single image has nothing to contrast with
            if getattr(self, key) < least:
                raise InputError(f"partition.{key} is {getattr(self, key)}: give {least} or more.")
        if not 0 < self.alpha < math.inf:  # nan is refused as well
            raise InputError(f"partition.alpha is {self.alpha}: give a positive number.")
        if not 0 <= self.uneven <= 10:
            raise InputError(f"partition.uneven is {self.uneven}: give a number from 0 to 10.")


def iid(images: ImageSet, sharing: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every client has the same number of images of every class, up to one; `uneven` changes the sizes."""
    weights = np.exp(sharing.uneven * draw.standard_normal(sharing.clients))
    known = _numbers(images.labels, images)
    strata = [draw.permutation(np.flatnonzero(known == label)) for label in np.unique(known)]
    return _dealt(np.concatenate(strata), weights)


def by_class(images: ImageSet, sharing: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every client has all images of C / K classes that follow one another, and of no other (D8).

    Images without a label are spread evenly.
    """
    classes = _classes(images)
    if sharing.clients > len(classes):
        raise InputError(
            f"{sharing.clients} clients cannot share {len(classes)} classes: lower partition.clients."
        )
    runs = np.array_split(np.arange(len(classes)), sharing.clients)
    shards = [np.concatenate([classes[place] for place in run]) for run in runs]
    return _joined([shards, _unlabelled(images, sharing, draw)])


def dirichlet(images: ImageSet, sharing: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every class is spread over the clients by a draw from Dirichlet(alpha), until none is too small.

    Images without a label are spread evenly.
    """
    classes = _classes(images)
    for _ in range(MAX_DIRICHLET_DRAWS):
        drawn = draw.dirichlet([sharing.alpha] * sharing.clients, len(classes))
        pairs = list(zip(classes, drawn, strict=True))
        sizes = sum(np.diff(_bounds(len(rows), weights), prepend=0) for rows, weights in pairs)
        if np.min(sizes) >= sharing.smallest:
            pieces = [_cut(draw.permutation(rows), weights) for rows, weights in pairs]
            return _joined([*pieces, _unlabelled(images, sharing, draw)])
    raise InputError(
        f"With alpha {sharing.alpha} no draw gives {sharing.clients} clients {sharing.smallest} images each: "
        "raise partition.alpha, or lower partition.clients or partition.smallest."
    )


def by_group(images: ImageSet, sharing: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """One client for each group, such as the hospital that an image comes from."""
    groups = _groups(images)
    found = np.unique(groups)
    if sharing.clients != len(found):
        raise InputError(
            f"The images are in {len(found)} groups and there are {sharing.clients} clients: "
            f"leave out partition.clients or set it to {len(found)}."
        )
    return [np.flatnonzero(groups == group) for group in found]


Partition = Callable[[ImageSet, PartitionOptions, np.random.Generator], list[Rows]]

PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "by_class": by_class,
    "dirichlet": dirichlet,
    "by_group": by_group,
}


def resolve(sharing: PartitionOptions, images: ImageSet) -> PartitionOptions:
    """The options with the number of clients that the images' groups give, where groups are clients."""
    if sharing.name != "by_group" or sharing.clients > 1:
        return sharing
    return replace(sharing, clients=len(np.unique(_groups(images))))


def partition_images(images: ImageSet, sharing: PartitionOptions, seed: int) -> list[Rows]:
    """The rows of each client, sorted: every image is somebody's, and nobody else's."""
    sharing = resolve(sharing, images)
    shards = PARTITIONS[sharing.name](images, sharing, np.random.default_rng(seed))
    least = min(map(len, shards))
    if least < sharing.smallest:
        raise InputError(
            f"A client would have {least} images, fewer than partition.smallest = {sharing.smallest}: "
            f"have fewer clients{', a smaller partition.uneven' if sharing.uneven else ''} or more images."
        )
    return shards


class Holdings(NamedTuple):
    """How many images of each class each client holds."""

    clients: tuple[str, ...]  # their owner's name, or their number
    classes: tuple[str, ...]
    counts: Int64[np.ndarray, "clients classes"]


def holdings(images: ImageSet, shards: Sequence[Rows]) -> Holdings:
    """The table of who holds what; images without labels are one column, the last."""
    known = _numbers(images.labels, images)
    labels = [*np.unique(known[known >= 0]), *([-1] if (known < 0).any() else [])]
    counts = np.array([[(known[rows] == label).sum() for label in labels] for rows in shards], dtype=np.int64)
    return Holdings(_clients(images, shards), tuple(_class(images, int(label)) for label in labels), counts)


def encode_partition(images: ImageSet, shards: Sequence[Rows]) -> bytes:
    """The content of partition.npz: the rows of each client, and the table where there are labels."""
    table = holdings(images, shards)
    arrays: dict[str, np.ndarray] = {f"rows_{client}": rows for client, rows in enumerate(shards)}
    arrays["clients"] = np.array(table.clients)
    if images.labels is not None:
        arrays |= {"classes": np.array(table.classes), "holdings": table.counts}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _numbers(known: Labels | None, images: ImageSet) -> Labels:
    """Labels or groups; -1 for every image where nothing is known."""
    return np.full(len(images), -1, dtype=np.int64) if known is None else known


def _classes(images: ImageSet) -> list[Rows]:
    """The rows of each class, in the order of the labels."""
    known = _numbers(images.labels, images)
    classes = [np.flatnonzero(known == label) for label in np.unique(known) if label >= 0]
    if not classes:
        raise InputError("The images have no labels to share them by: set partition.name to iid or by_group.")
    return classes


def _groups(images: ImageSet) -> Labels:
    """The group of every image, refused where one has none."""
    groups = _numbers(images.groups, images)
    if (groups < 0).all():
        raise InputError(
            "The images have no groups: set data.groups for a folder of owners' folders, add an array "
            "'groups' to the .npz file, or set partition.name to iid."
        )
    if missing := int((groups < 0).sum()):
        raise InputError(f"{missing} images belong to no group: give every image one, or leave them out.")
    return groups


def _unlabelled(images: ImageSet, sharing: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """The images without a label, spread evenly over all clients (D16)."""
    rows = np.flatnonzero(_numbers(images.labels, images) < 0)
    return _dealt(draw.permutation(rows), np.ones(sharing.clients))


def _dealt(rows: Rows, weights: Weights) -> list[Rows]:
    """The rows dealt like cards, so that every stretch of them is shared in proportion to the weights."""
    aims = weights / weights.sum() * max(len(rows), 1)
    turns = [(np.arange(int(aim) + 2) + 0.5) / aim for aim in aims]
    players = np.repeat(np.arange(len(weights)), [len(own) for own in turns])
    order = np.argsort(np.concatenate(turns), kind="stable")[: len(rows)]  # equals take turns
    return [np.sort(rows[players[order] == client]) for client in range(len(weights))]


def _cut(rows: Rows, weights: Weights) -> list[Rows]:
    """The rows in pieces of sizes in proportion to the weights."""
    return np.split(rows, _bounds(len(rows), weights)[:-1])


def _bounds(count: int, weights: Weights) -> Int64[np.ndarray, " clients"]:
    """Where each piece of `count` rows ends."""
    ends: np.ndarray = np.round(np.cumsum(weights) / weights.sum() * count).astype(np.int64)
    return ends


def _joined(parts: Iterable[list[Rows]]) -> list[Rows]:
    """The rows of each client over all parts, sorted."""
    return [np.sort(np.concatenate(pieces)) for pieces in zip(*parts, strict=True)]


def _class(images: ImageSet, label: int) -> str:
    if label < 0:
        return "images" if images.labels is None else "unlabelled"
    return images.classes[label] if label < len(images.classes) else str(label)


def _clients(images: ImageSet, shards: Sequence[Rows]) -> tuple[str, ...]:
    """The owners' names where each client is one of them, else numbers."""
    numbers = tuple(map(str, range(len(shards))))
    groups = _numbers(images.groups, images)
    found = [set(groups[rows].tolist()) for rows in shards]
    owners = [own.pop() for own in found if len(own) == 1]
    one_each = len(set(owners)) == len(shards) and min(owners) >= 0
    return tuple(images.owners[owner] for owner in owners) if one_each and images.owners else numbers
