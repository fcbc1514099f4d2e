"""Centroids of features: how clients compute them, what the server accepts, and stages that train nothing."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.distinct_images import DistinctPoints
from fedmcc.methods.extras import TensorSpec, concatenate, extras_mismatch
from fedmcc.networks.momentum import Network
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

HEAD = "online.cluster_projector"
VECTORS = f"{HEAD}.vectors.weight"
SMALLEST_CLUSTER = 10  # images that a centroid represents at least; docs/privacy.md has the cost
SMALLEST_ALONE = 1  # if the only client is this machine: nothing is sent to others
LOCAL_RESTARTS = 3  # of a client's k-means; with many centroids, few restarts suffice
MAX_UNIT_LENGTH = 1.01  # of a centroid of unit vectors, with rounding
FEW_CENTROIDS = (
    "All clients together have sent %d centroids for %d clusters: some clusters stay empty. Give clients "
    "more images, or let centroids represent fewer (the option smallest; docs/privacy.md has the cost)."
)
MAX_FEATURE = 1e4  # root mean square of the numbers of a centroid of features of any length


Centroids = tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " k"]]


@dataclass(frozen=True, kw_only=True)
class Statistics(Stage):
    """A stage without training: clients send statistics of their features, and the server sets the head."""

    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)


def images_needed(stated: int | None) -> int:
    """Number of images that a centroid must represent, by the option `smallest`."""
    return SMALLEST_CLUSTER if stated is None else stated


def encode(net: Network, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Features of the batches by the online encoder in inference mode."""
    net.eval()
    for batch in batches:
        yield net.online.encoder(batch).float()


def local_centroids(
    found: DistinctPoints, count: int, seed: int, smallest: int, restarts: int = LOCAL_RESTARTS
) -> Centroids:
    """The centroids that a client sends, each of at least `smallest` different images, and their sizes.

    Copies count in the sizes alone: in a mean, an image that is stored often would outweigh all others.
    """
    points, copies = found
    model = kmeans.fit(points, min(count, len(points)), seed, restarts=restarts)
    return sized(*kmeans.merge_small_clusters(points, model, smallest), copies)


def sized(
    centres: Float[np.ndarray, "k d"], labels: Int64[np.ndarray, " n"], copies: Int64[np.ndarray, " n"]
) -> Centroids:
    """Centres and their numbers of images, with copies."""
    return centres, np.bincount(labels, copies, len(centres)).astype(np.int64)


def sent(found: Centroids) -> State:
    """Centroids and sizes in the form in which they are sent."""
    return {"centroids": torch.from_numpy(found[0]).float(), "sizes": torch.from_numpy(found[1])}


def longest(features: int, unit: bool) -> float:
    """The largest length of a centroid of vectors with this number of features."""
    return MAX_UNIT_LENGTH if unit else MAX_FEATURE * math.sqrt(features)


def centroids_error(
    update: Update, most: int, features: int, smallest: int, unit: bool = True, sets: int = 1
) -> str:
    """Why the centroids of an update cannot be those of its images, as a sentence; empty if they can.

    The sizes of all sets of centroids together are `sets` times the number of images at most.
    """
    expected: dict[str, TensorSpec] = {
        "centroids": (torch.float32, (None, features)),
        "sizes": (torch.int64, (None,)),
    }
    if mismatch := extras_mismatch(update.extras, expected):
        return mismatch
    centroids, sizes = update.extras["centroids"], update.extras["sizes"]
    most = max(1, min(most, update.samples * sets))
    if len(centroids) > most:
        return f"It has {len(centroids)} centroids; at most {most} are allowed."
    wholes, rest = divmod(int(sizes.sum()), update.samples)
    possible = not rest and 1 <= wholes <= sets and bool((sizes <= update.samples).all())
    if len(centroids) != len(sizes) or not possible:
        return "The sizes of its centroids do not sum to its number of images."
    if len(sizes) > 1 and int(sizes.min()) < smallest:
        return f"Its centroids represent fewer images than {smallest}, the smallest number."
    if (centroids.norm(dim=1) <= longest(features, unit)).all():
        return ""
    return f"Its centroids lie outside the {'unit sphere' if unit else 'range of features'}."


def gathered(updates: Sequence[Update], counts: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The centroids of all clients, and their numbers of images, limited as `counts` says."""
    rows = torch.cat([update.extras["centroids"] for update in updates]).numpy()
    return rows, concatenate(updates, "sizes", counts).numpy().astype(np.float32)


def repeated(centres: Tensor, count: int) -> Tensor:
    """The centres, repeated in turn up to this number if there are too few."""
    return centres[torch.arange(count) % len(centres)]
