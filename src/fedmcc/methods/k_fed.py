"""k-FED: one-shot federated k-means (Dennis, Li and Smith, ICML 2021).

It is meant for clients that hold few clusters each, far from one another. Clients send centres without
weights, so that the server's farthest-point seeding also finds clusters of few images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import (
    HEAD,
    LOCAL_RESTARTS,
    VECTORS,
    Statistics,
    centroids_error,
    encode,
    gathered,
    images_needed,
    repeated,
    sent,
    sized,
)
from fedmcc.methods.distinct_images import distinct_points
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.centres import Centres
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

CLEARLY_NEARER = 1 / 3  # distance to the own centre relative to any other, of the rows that give the seeds

Rows = Float[np.ndarray, "n d"]


@dataclass(frozen=True)
class KFed:
    """k-FED: clients cluster their features alone, and the server groups the centres, in one round."""

    local: int = 0  # clusters of a client; 0: as many as there are in all
    unit: bool = False  # scale features to length 1
    smallest: int | None = None  # images of a centre; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        require_positive(self, "smallest", section="clustering")
        if self.local < 0:
            raise InputError(f"clustering.local is {self.local}: give 0 or more.")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of centres to the network."""
        set_cluster_projector(net, Centres(features, clusters, self.unit))

    def stages(self) -> tuple[Stage, ...]:
        """One round, without training."""
        return (OneShot(method=self),)


@dataclass(frozen=True, kw_only=True)
class OneShot(Statistics):
    """Clients send the centres of their own clusters; the server groups the centres."""

    method: KFed
    seed: int = 0  # of a client's first centres
    name: str = "one-shot"

    @property
    def smallest(self) -> int:
        """Number of images that a centre must represent to be sent."""
        return images_needed(self.method.smallest)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centres of this client's features, and the number of images of each."""
        head = net.online.cluster_projector
        features = torch.cat([head.points(features).cpu() for features in encode(net, batches)])
        points, copies = distinct_points(net, features)
        centres = seeds(points, min(self._most(head.vectors.weight), len(points)), self.seed)
        model = kmeans.fit_from(points, centres)
        return sent(sized(*kmeans.merge_small_clusters(points, model, self.smallest), copies))

    def extras_error(self, update: Update) -> str:
        """Check number, sizes and lengths of the centres."""
        vectors = update.weights[VECTORS]
        return centroids_error(update, self._most(vectors), vectors.shape[1], self.smallest, self.method.unit)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Group the centres around those that are farthest apart; a cluster is the mean of its centres."""
        vectors = model[VECTORS]
        rows, sizes = gathered(updates, self.counts(updates))
        first = max(updates, key=lambda update: len(update.extras["sizes"])).extras["centroids"].numpy()
        chosen = farthest(first, rows, len(vectors))
        nearest = _squared_distances(rows, chosen).argmin(axis=1)
        members = np.eye(len(chosen), dtype=np.float32)[nearest]
        counts = members.sum(axis=0)[:, None]  # 0 for the second of two equal centres
        means = np.where(counts > 0, members.T @ rows / np.maximum(counts, 1), chosen)
        centres = torch.from_numpy(means).to(vectors)
        marginal = torch.zeros(len(vectors))
        marginal[: len(chosen)] = torch.from_numpy(members.T @ (sizes / sizes.sum()))
        return Aggregate({VECTORS: repeated(centres, len(vectors)), f"{HEAD}.marginal": marginal}, {})

    def _most(self, vectors: Tensor) -> int:
        return min(self.method.local or len(vectors), len(vectors))


def seeds(points: Rows, count: int, seed: int) -> Float[np.ndarray, "k d"]:
    """First centres of a client: means of the rows that are clearly nearest to one projected centre."""
    axes = np.linalg.svd(points, full_matrices=False)[2][:count]
    projected = points @ axes.T
    model = kmeans.fit(projected, count, seed, restarts=LOCAL_RESTARTS)
    own = np.eye(count, dtype=bool)[model.labels_]
    core = own & clearly_nearest(projected, model.cluster_centers_)
    core = np.where(core.any(axis=0), core, own).astype(points.dtype)  # a cluster may have no clear row
    centres: Float[np.ndarray, "k d"] = core.T @ points / np.maximum(core.sum(axis=0), 1)[:, None]
    return centres


def clearly_nearest(rows: Rows, centres: Float[np.ndarray, "k d"]) -> Bool[np.ndarray, "n k"]:
    """Whether a row is at most a third as far from a centre as from every other centre."""
    distances = np.sqrt(_squared_distances(rows, centres))
    clear: Bool[np.ndarray, "n k"] = np.eye(len(centres), dtype=bool)[distances.argmin(axis=1)]
    if len(centres) > 1:
        first, second = np.partition(distances, 1, axis=1)[:, :2].T
        clear &= (first <= CLEARLY_NEARER * second)[:, None]
    return clear


def farthest(first: Float[np.ndarray, "k d"], rows: Rows, count: int) -> Float[np.ndarray, "m d"]:
    """The first centres and the rows farthest from all chosen ones, one by one, up to this number."""
    chosen = first[:count]
    while len(chosen) < min(count, len(rows)):
        distances = _squared_distances(rows, chosen).min(axis=1)
        chosen = np.concatenate([chosen, rows[None, distances.argmax()]])
    return chosen


def _squared_distances(rows: Rows, centres: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "n k"]:
    lengths = np.square(rows).sum(axis=1, keepdims=True) + np.square(centres).sum(axis=1)
    distances: Float[np.ndarray, "n k"] = np.maximum(lengths - 2 * rows @ centres.T, 0)
    return distances
