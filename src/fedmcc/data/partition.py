"""Partitions of the images among simulated clients: functions from labels or groups to rows.

Labels are used only to simulate clients; no client receives them. To add a partition, add a function and
a line in PARTITIONS.
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

Rows = Int64[np.ndarray, " _"]  # the number differs between clients
Weights = Float64[np.ndarray, " clients"]
MAX_DIRICHLET_DRAWS = 1000  # attempts to give every client at least `smallest` images


@dataclass(frozen=True)
class PartitionOptions:
    """How a simulation partitions the images among its clients."""

    name: str = "iid"  # iid, by_class, dirichlet or by_group
    clients: int = 1  # K; with by_group, 1 means one per group
    alpha: float = 0.5  # of dirichlet; smaller values give more uneven clients
    uneven: float = 0.0  # of iid; standard deviation of the logarithm of the client sizes
    smallest: int = 2  # minimum number of images of every client
    withheld: float = (
        0.0  # share of every class that no client gets; the protocol semi trains on these labels
    )

    def __post_init__(self) -> None:
        if self.name not in PARTITIONS:
            raise unknown("partition", self.name, PARTITIONS)
        for key, minimum in (("clients", 1), ("smallest", 2)):  # a contrastive loss needs two images
            if getattr(self, key) < minimum:
                raise InputError(f"partition.{key} is {getattr(self, key)}: give {minimum} or more.")
        if not 0 < self.alpha < math.inf:  # also rejects NaN
            raise InputError(f"partition.alpha is {self.alpha}: give a positive number.")
        if not 0 <= self.uneven <= 10:
            raise InputError(f"partition.uneven is {self.uneven}: give a number from 0 to 10.")
        if not 0 <= self.withheld < 1:
            raise InputError(f"partition.withheld is {self.withheld}: give 0 or more, and less than 1.")


def iid(images: ImageSet, options: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every client gets the same number of images of every class, up to one; `uneven` varies the sizes."""
    weights = np.exp(options.uneven * draw.standard_normal(options.clients))
    labels = _numbers(images.labels, images)
    strata = [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    return _interleave(np.concatenate(strata), weights)


def by_class(images: ImageSet, options: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every client gets all images of C / K consecutive classes, and no others (D8).

    Images without a label are distributed evenly.
    """
    classes = _rows_by_class(images)
    if options.clients > len(classes):
        raise InputError(
            f"{len(classes)} classes are too few for {options.clients} clients: lower partition.clients."
        )
    ranges = np.array_split(np.arange(len(classes)), options.clients)
    shards = [np.concatenate([classes[index] for index in indices]) for indices in ranges]
    return _join([shards, _distribute_unlabelled(images, options, draw)])


def dirichlet(images: ImageSet, options: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every class is divided by a draw from Dirichlet(alpha), repeated until no client is too small.

    Images without a label are distributed evenly.
    """
    classes = _rows_by_class(images)
    for _ in range(MAX_DIRICHLET_DRAWS):
        drawn = draw.dirichlet([options.alpha] * options.clients, len(classes))
        pairs = list(zip(classes, drawn, strict=True))
        sizes = sum(np.diff(_piece_ends(len(rows), weights), prepend=0) for rows, weights in pairs)
        if np.min(sizes) >= options.smallest:
            pieces = [_divide(draw.permutation(rows), weights) for rows, weights in pairs]
            return _join([*pieces, _distribute_unlabelled(images, options, draw)])
    raise InputError(
        f"No draw with alpha {options.alpha} gives {options.clients} clients {options.smallest} images each: "
        "raise partition.alpha, or lower partition.clients or partition.smallest."
    )


def by_group(images: ImageSet, options: PartitionOptions, draw: np.random.Generator) -> list[Rows]:
    """Every group, such as the images of one hospital, is a client."""
    groups = _groups(images)
    distinct = np.unique(groups)
    if options.clients != len(distinct):
        raise InputError(
            f"The images have {len(distinct)} groups, but partition.clients is {options.clients}: "
            f"remove partition.clients or set it to {len(distinct)}."
        )
    return [np.flatnonzero(groups == group) for group in distinct]


Partition = Callable[[ImageSet, PartitionOptions, np.random.Generator], list[Rows]]

PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "by_class": by_class,
    "dirichlet": dirichlet,
    "by_group": by_group,
}
"""Partitions by name, functions that divide images among simulated clients; `fedmcc list partitions`.

Examples
--------
>>> from fedmcc import PARTITIONS
>>> list(PARTITIONS)
['iid', 'by_class', 'dirichlet', 'by_group']
"""


def resolve(options: PartitionOptions, images: ImageSet) -> PartitionOptions:
    """With by_group and no given number of clients, set it to the number of groups."""
    if options.name != "by_group" or options.clients > 1:
        return options
    return replace(options, clients=len(np.unique(_groups(images))))


def partition_images(images: ImageSet, options: PartitionOptions, seed: int) -> list[Rows]:
    """Assign every image that is not withheld to exactly one client; return each client's sorted rows."""
    options = resolve(options, images)
    shards = PARTITIONS[options.name](images, options, np.random.default_rng(seed))
    if options.withheld:
        missing = _withheld(images, options.withheld, seed)
        shards = [np.setdiff1d(rows, missing) for rows in shards]
    fewest = min(map(len, shards))
    if fewest < options.smallest:
        raise InputError(
            f"A client would have {fewest} images, fewer than partition.smallest = {options.smallest}: "
            f"use fewer clients{', a smaller partition.uneven' if options.uneven else ''} or more images."
        )
    return shards


class Holdings(NamedTuple):
    """Number of images of each class at each client."""

    clients: tuple[str, ...]  # names of the owners, or numbers
    classes: tuple[str, ...]
    counts: Int64[np.ndarray, "clients classes"]


def holdings(images: ImageSet, shards: Sequence[Rows]) -> Holdings:
    """Count the images of each class at each client; images without a label are the last column."""
    labels = _numbers(images.labels, images)
    columns = [*np.unique(labels[labels >= 0]), *([-1] if (labels < 0).any() else [])]
    counts = np.array(
        [[(labels[rows] == label).sum() for label in columns] for rows in shards], dtype=np.int64
    )
    classes = tuple(_class_name(images, int(label)) for label in columns)
    return Holdings(_client_names(images, shards), classes, counts)


def encode_partition(images: ImageSet, shards: Sequence[Rows]) -> bytes:
    """Content of partition.npz: the rows of each client and, if there are labels, the table of holdings."""
    table = holdings(images, shards)
    arrays: dict[str, np.ndarray] = {f"rows_{client}": rows for client, rows in enumerate(shards)}
    arrays["clients"] = np.array(table.clients)
    if images.labels is not None:
        arrays |= {"classes": np.array(table.classes), "holdings": table.counts}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_shards(content: bytes) -> list[Rows]:
    """The rows of each client in the content of partition.npz; raises ValueError if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            count = sum(name.startswith("rows_") for name in arrays.files)
            return [arrays[f"rows_{client}"] for client in range(count)]
    except Exception as error:  # a damaged archive can raise nearly any exception
        raise ValueError(str(error)) from None


def _numbers(numbers: Labels | None, images: ImageSet) -> Labels:
    """Labels or groups of the images; -1 for every image if there are none."""
    return np.full(len(images), -1, dtype=np.int64) if numbers is None else numbers


def _rows_by_class(images: ImageSet) -> list[Rows]:
    """Rows of each class, in the order of the labels."""
    labels = _numbers(images.labels, images)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels) if label >= 0]
    if not classes:
        raise InputError("The images have no labels: set partition.name to iid or by_group.")
    return classes


def _groups(images: ImageSet) -> Labels:
    """Group of every image; raises InputError if an image has none."""
    groups = _numbers(images.groups, images)
    if (groups < 0).all():
        raise InputError(
            "The images have no groups: set data.groups for a folder of owners' folders, add an array "
            "'groups' to the .npz file, or set partition.name to iid."
        )
    if missing := int((groups < 0).sum()):
        raise InputError(f"{missing} images have no group: give every image a group, or remove these images.")
    return groups


def _withheld(images: ImageSet, share: float, seed: int) -> Rows:
    """The sorted rows of this share of every class, drawn at random."""
    if images.labels is None or (images.labels < 0).all():
        raise InputError("The images have no labels: set partition.withheld to 0.")
    draw = np.random.default_rng(seed)
    drawn = [draw.permutation(rows)[: round(share * len(rows))] for rows in _rows_by_class(images)]
    return np.sort(np.concatenate(drawn))


def _distribute_unlabelled(
    images: ImageSet, options: PartitionOptions, draw: np.random.Generator
) -> list[Rows]:
    """Distribute the images without a label evenly over all clients (D16)."""
    rows = np.flatnonzero(_numbers(images.labels, images) < 0)
    return _interleave(draw.permutation(rows), np.ones(options.clients))


def _interleave(rows: Rows, weights: Weights) -> list[Rows]:
    """Distribute the rows in turn, so that every range of them is divided in proportion to the weights."""
    targets = weights / weights.sum() * max(len(rows), 1)
    turns = [(np.arange(int(target) + 2) + 0.5) / target for target in targets]  # when a client gets a row
    clients = np.repeat(np.arange(len(weights)), [len(times) for times in turns])
    order = np.argsort(np.concatenate(turns), kind="stable")[: len(rows)]  # stable: ties go by client
    return [np.sort(rows[clients[order] == client]) for client in range(len(weights))]


def _divide(rows: Rows, weights: Weights) -> list[Rows]:
    """Split the rows into pieces with sizes in proportion to the weights."""
    return np.split(rows, _piece_ends(len(rows), weights)[:-1])


def _piece_ends(count: int, weights: Weights) -> Int64[np.ndarray, " clients"]:
    """End of each piece of `count` rows."""
    ends: np.ndarray = np.round(np.cumsum(weights) / weights.sum() * count).astype(np.int64)
    return ends


def _join(parts: Iterable[list[Rows]]) -> list[Rows]:
    """Concatenate and sort the rows of each client over all parts."""
    return [np.sort(np.concatenate(pieces)) for pieces in zip(*parts, strict=True)]


def _class_name(images: ImageSet, label: int) -> str:
    if label < 0:
        return "images" if images.labels is None else "unlabelled"
    return images.classes[label] if label < len(images.classes) else str(label)


def _client_names(images: ImageSet, shards: Sequence[Rows]) -> tuple[str, ...]:
    """Names of the owners if each client is exactly one owner, otherwise numbers."""
    numbers = tuple(map(str, range(len(shards))))
    groups = _numbers(images.groups, images)
    groups_of_clients = [set(groups[rows].tolist()) for rows in shards]
    owners = [held.pop() for held in groups_of_clients if len(held) == 1]
    one_each = len(set(owners)) == len(shards) and min(owners) >= 0
    return tuple(images.owners[owner] for owner in owners) if one_each and images.owners else numbers
