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
from fedmcc.methods.extras import concatenate, extras_mismatch
from fedmcc.networks.momentum import Network
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

HEAD = "online.cluster_projector"
VECTORS = f"{HEAD}.vectors.weight"
SMALLEST_CLUSTER = 10  # images that a centroid represents at least; docs/privacy.md has the cost
LOCAL_RESTARTS = 3  # of a client's k-means; with many centroids, few restarts suffice
MAX_UNIT_LENGTH = 1.01  # of a centroid of unit vectors, with rounding
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


def encode(net: Network, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Features of the batches by the online encoder in inference mode."""
    net.eval()
    for batch in batches:
        yield net.online.encoder(batch).float()


def local_centroids(
    points: Float[np.ndarray, "n d"], count: int, seed: int, smallest: int, restarts: int = LOCAL_RESTARTS
) -> Centroids:
    """The centroids that a client sends, and the number of images of each, at least `smallest`."""
    model = kmeans.fit(points, count, seed, restarts=restarts)
    return kmeans.merge_small_clusters(points, model, smallest)


def sent(centroids: Float[np.ndarray, "k d"], sizes: Int64[np.ndarray, " k"]) -> State:
    """Centroids and sizes in the form in which they are sent."""
    return {"centroids": torch.from_numpy(centroids).float(), "sizes": torch.from_numpy(sizes)}


def longest(features: int, unit: bool) -> float:
    """The largest length of a centroid of vectors with this number of features."""
    return MAX_UNIT_LENGTH if unit else MAX_FEATURE * math.sqrt(features)


def centroids_error(update: Update, most: int, smallest: int, unit: bool) -> str:
    """Why the centroids of an update cannot be those of its images, as a sentence; empty if they can."""
    features = update.weights[VECTORS].shape[1]
    expected = {"centroids": (torch.float32, (None, features)), "sizes": (torch.int64, (None,))}
    if mismatch := extras_mismatch(update.extras, expected):
        return mismatch
    centroids, sizes = update.extras["centroids"], update.extras["sizes"]
    most = max(1, min(most, update.samples))
    if len(centroids) > most:
        return f"It has {len(centroids)} centroids; at most {most} are allowed."
    if len(centroids) != len(sizes) or (sizes > update.samples).any() or sizes.sum() != update.samples:
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
