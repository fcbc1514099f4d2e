"""Exact federated k-means: clients send sums and counts of their features, the server moves the centres.

The sums of all clients add up to those of the pooled features, so that the result is that of Lloyd's
algorithm on one machine, however the images are distributed (Dhillon and Modha 2000).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage, require_positive
from fedmcc.methods.extras import add_up, concatenate, extras_mismatch
from fedmcc.methods.federated_kmeans import HEAD, LOCAL_RESTARTS, encode
from fedmcc.networks.centres import Centres, squared_distances
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

VECTORS = f"{HEAD}.vectors.weight"


@dataclass(frozen=True)
class LloydKMeans:
    """Lloyd's k-means of all clients' features, with the same result for every distribution of the images."""

    rounds: int = 10  # steps of Lloyd's algorithm
    excess: float = 2.0  # first centroids of a client per cluster; 1 and a single client: k-means itself
    unit: bool = False  # scale features to length 1
    smallest: int = 1  # images that a centroid or a sum must represent to be sent; above 1 it is not exact

    def __post_init__(self) -> None:
        require_positive(self, "rounds", "excess", "smallest", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of centres to the network."""
        set_cluster_projector(net, Centres(features, clusters, self.unit))

    def stages(self) -> tuple[Stage, ...]:
        """Seeds, in one round, and Lloyd's algorithm; nothing is trained."""
        seeds = Seeds(excess=self.excess, unit=self.unit, smallest=self.smallest)
        return (seeds, Lloyd(rounds=self.rounds, smallest=self.smallest))


@dataclass(frozen=True, kw_only=True)
class Seeds(Stage):
    """Clients send centroids and their sizes; the server's weighted k-means gives the first centres."""

    excess: float = 2.0  # centroids of a client per centre
    unit: bool = False  # features have length 1
    smallest: int = 1  # images that a centroid must represent
    seed: int = 0  # of the initial centres
    name: str = "seeds"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (f"{HEAD}.vectors",)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's features, and the number of images of each."""
        head = net.online.cluster_projector
        points = torch.cat([head.points(features).cpu() for features in encode(net, batches)])
        centroids, sizes = self.centroids(points, len(head.vectors.weight))
        return {"centroids": torch.from_numpy(centroids).float(), "sizes": torch.from_numpy(sizes)}

    def centroids(
        self, points: Float[Tensor, "n d"], centres: int
    ) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " k"]]:
        """Centroids of the points for this number of centres, and the number of points of each."""
        rows, count = points.numpy(), max(1, min(int(self.excess * centres), len(points)))
        restarts = kmeans.RESTARTS if count <= centres else LOCAL_RESTARTS
        model = kmeans.fit(rows, count, self.seed, restarts=restarts)
        return kmeans.merge_small_clusters(rows, model, self.smallest)

    def extras_error(self, update: Update) -> str:
        """Check shapes, that the sizes sum to the number of images, and the length of unit centroids."""
        features = update.weights[VECTORS].shape[1]
        expected = {"centroids": (torch.float32, (None, features)), "sizes": (torch.int64, (None,))}
        if mismatch := extras_mismatch(update.extras, expected):
            return mismatch
        centroids, sizes = update.extras["centroids"], update.extras["sizes"]
        if len(centroids) != len(sizes) or (sizes < 0).any() or int(sizes.sum()) != update.samples:
            return "The sizes of its centroids do not sum to its number of images."
        outside = self.unit and bool((centroids.norm(dim=1) > 1.01).any())
        return "Its centroids lie outside the unit sphere." if outside else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, weighted by their numbers of images."""
        vectors = model[VECTORS]
        rows = torch.cat([update.extras["centroids"] for update in updates]).numpy()
        sizes = concatenate(updates, "sizes", self.counts(updates)).numpy().astype(np.float32)
        count = min(len(vectors), len(rows))
        centres = torch.from_numpy(kmeans.fit_weighted(rows, count, self.seed, sizes).centres).to(vectors)
        repeated = torch.arange(len(vectors)) % count  # if there are too few centroids
        return Aggregate({VECTORS: centres[repeated]}, {})


@dataclass(frozen=True, kw_only=True)
class Lloyd(Stage):
    """Clients send the sum and the number of the features nearest to each centre, which moves to the mean."""

    smallest: int = 1  # images that a sum must have; smaller ones are not sent
    name: str = "lloyd"
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Sums and counts by nearest centre, in double precision."""
        head = net.online.cluster_projector
        centres = head.vectors.weight.detach().cpu().double()
        sums, counts = torch.zeros_like(centres), torch.zeros(len(centres), dtype=torch.int64)
        for features in encode(net, batches):
            points = head.points(features.cpu().double())
            nearest = squared_distances(points, centres).argmin(dim=1)
            sums.index_add_(0, nearest, points)
            counts += nearest.bincount(minlength=len(centres))
        sent = counts >= self.smallest
        return {"sums": torch.where(sent[:, None], sums, 0), "counts": torch.where(sent, counts, 0)}

    def extras_error(self, update: Update) -> str:
        """Check shapes, that the counts sum to the number of images, and that an empty cluster has no sum."""
        shape = tuple(update.weights[VECTORS].shape)
        expected = {"sums": (torch.float64, shape), "counts": (torch.int64, shape[:1])}
        if mismatch := extras_mismatch(update.extras, expected):
            return mismatch
        sums, counts = update.extras["sums"], update.extras["counts"]
        missing = update.samples - int(counts.sum())
        if (counts < 0).any() or missing < 0 or (missing and self.smallest == 1):
            return "The counts of its clusters do not sum to its number of images."
        return "It has a sum for a cluster without images." if (sums[counts == 0] != 0).any() else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Move each centre to the mean of its images; a centre without images stays."""
        limited = self.counts(updates)
        sums, counts = (add_up(updates, key, limited) for key in ("sums", "counts"))
        means = sums / counts.clamp_min(1e-12)[:, None]  # a limited client may count as less than one image
        centres = torch.where(counts[:, None] > 0, means.to(model[VECTORS]), model[VECTORS])
        shares = (counts / counts.sum().clamp_min(1e-12)).to(model[f"{HEAD}.marginal"])
        return Aggregate({VECTORS: centres, f"{HEAD}.marginal": shares}, {})
