"""Exact federated k-means: clients send sums and counts of their features, the server moves the centres.

The sums of all clients add up to those of the pooled features, so that the result is that of Lloyd's
algorithm on one machine, however the images are distributed (Dhillon and Modha 2000).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.centroids import (
    HEAD,
    LOCAL_RESTARTS,
    SMALLEST_CLUSTER,
    VECTORS,
    Centroids,
    Statistics,
    centroids_error,
    encode,
    gathered,
    images_needed,
    local_centroids,
    longest,
    repeated,
    sent,
)
from fedmcc.methods.distinct_images import DistinctPoints, are_first, distinct_points
from fedmcc.methods.extras import add_up, extras_mismatch
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.centres import Centres, squared_distances
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class LloydKMeans:
    """Lloyd's k-means of all clients' features; exact for every distribution of the images if smallest is 1.

    By default, a client leaves out its images in clusters of which it has fewer than 10.
    """

    rounds: int = 10  # steps of Lloyd's algorithm
    excess: float = 2.0  # first centroids of a client per cluster; 1 and a single client: k-means itself
    unit: bool = False  # scale features to length 1
    smallest: int | None = None  # images of a centroid or sum; 1: exact; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        require_positive(self, "rounds", "excess", "smallest", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of centres to the network."""
        set_cluster_projector(net, Centres(features, clusters, self.unit))

    def stages(self) -> tuple[Stage, ...]:
        """Seeds, in one round, and Lloyd's algorithm; nothing is trained."""
        smallest = images_needed(self.smallest)
        seeds = Seeds(excess=self.excess, unit=self.unit, smallest=smallest)
        return (seeds, Lloyd(rounds=self.rounds, unit=self.unit, smallest=smallest))


@dataclass(frozen=True, kw_only=True)
class Seeds(Statistics):
    """Clients send centroids and their sizes; the server's weighted k-means gives the first centres."""

    excess: float = 2.0  # centroids of a client per centre
    unit: bool = False  # features have length 1
    smallest: int = SMALLEST_CLUSTER  # images that a centroid must represent
    seed: int = 0  # of the initial centres
    name: str = "seeds"
    shared: Parts = (f"{HEAD}.vectors",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's features, and the number of images of each."""
        head = net.online.cluster_projector
        points = torch.cat([head.points(features).cpu() for features in encode(net, batches)])
        return sent(self.centroids(distinct_points(net, points), len(head.vectors.weight)))

    def centroids(self, found: DistinctPoints, centres: int) -> Centroids:
        """Centroids of the points for this number of centres, and the number of images of each."""
        count = max(1, min(int(self.excess * centres), len(found.points)))
        restarts = kmeans.RESTARTS if count <= centres else LOCAL_RESTARTS
        return local_centroids(found, count, self.seed, self.smallest, restarts)

    def extras_error(self, update: Update) -> str:
        """Check number, sizes and lengths of the centroids."""
        most = int(self.excess * len(update.weights[VECTORS]))
        return centroids_error(update, most, update.weights[VECTORS].shape[1], self.smallest, self.unit)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, weighted by their numbers of images."""
        vectors = model[VECTORS]
        rows, sizes = gathered(updates, self.counts(updates))
        fitted = kmeans.fit_weighted(rows, min(len(vectors), len(rows)), self.seed, sizes)
        return Aggregate({VECTORS: repeated(torch.from_numpy(fitted.centres).to(vectors), len(vectors))}, {})


@dataclass(frozen=True, kw_only=True)
class Lloyd(Statistics):
    """Clients send the sum and the number of the features nearest to each centre, which moves to the mean."""

    unit: bool = False  # features have length 1
    smallest: int = SMALLEST_CLUSTER  # different images that a sum must have; smaller ones are not sent
    name: str = "lloyd"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Sums and counts by nearest centre, in double precision."""
        head = net.online.cluster_projector
        centres = head.vectors.weight.detach().cpu().double()
        sums, assigned = torch.zeros_like(centres), []
        for features in encode(net, batches):
            points = head.points(features.cpu().double())
            assigned.append(squared_distances(points, centres).argmin(dim=1))
            sums.index_add_(0, assigned[-1], points)
        return self.large(net, sums, torch.cat(assigned))

    def large(
        self, net: Network, sums: Float64[Tensor, "k d"], assigned: Int64[Tensor, " n"]
    ) -> dict[str, Tensor]:
        """The sums and counts of the clusters that have at least `smallest` different images."""
        counts, first = assigned.bincount(minlength=len(sums)), are_first(net, 0, len(assigned))
        sent = assigned[first].bincount(minlength=len(sums)) >= self.smallest
        return {"sums": torch.where(sent[:, None], sums, 0), "counts": torch.where(sent, counts, 0)}

    def extras_error(self, update: Update) -> str:
        """Check shapes, counts and lengths: the mean of a cluster cannot be longer than its images."""
        shape = tuple(update.weights[VECTORS].shape)
        expected = {"sums": (torch.float64, shape), "counts": (torch.int64, shape[:1])}
        if mismatch := extras_mismatch(update.extras, expected):
            return mismatch
        sums, counts = update.extras["sums"], update.extras["counts"]
        missing = update.samples - int(counts.sum())
        if (counts < 0).any() or missing < 0 or (missing and self.smallest == 1):
            return "The counts of its clusters do not sum to its number of images."
        if ((counts > 0) & (counts < self.smallest)).any():
            return f"A sum represents fewer images than {self.smallest}, the smallest number."
        if (sums[counts == 0] != 0).any():
            return "It has a sum for a cluster without images."
        within = (sums.norm(dim=1) <= longest(shape[1], self.unit) * counts).all()
        return "" if within else "Its sums are longer than those of its images can be."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Move each centre to the mean of its images; a centre without images stays."""
        limited = self.counts(updates)
        sums, counts = (add_up(updates, key, limited) for key in ("sums", "counts"))
        means = sums / counts.clamp_min(1e-12)[:, None]  # a limited client may count as less than one image
        centres = torch.where(counts[:, None] > 0, means.to(model[VECTORS]), model[VECTORS])
        shares = (counts / counts.sum().clamp_min(1e-12)).to(model[f"{HEAD}.marginal"])
        return Aggregate({VECTORS: centres, f"{HEAD}.marginal": shares}, {})
