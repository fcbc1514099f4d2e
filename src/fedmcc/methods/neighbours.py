"""Federated clustering by votes of nearest neighbours on a frozen encoder: statistics alone, no gradients.

Images vote for clusters, clients send the sums and numbers of the images in each, and the server moves the
prototypes: Lloyd's algorithm in which an image belongs to the cluster for which its neighbours vote.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.centroids import (
    HEAD,
    SMALLEST_CLUSTER,
    VECTORS,
    Statistics,
    encode,
    gathered,
    images_needed,
    local_centroids,
    repeated,
    sent,
)
from fedmcc.methods.distinct_images import distinct_images, distinct_points, nearest_images
from fedmcc.methods.federated_kmeans import Centroids, FederatedKMeans
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.inputs import PARTNERS
from fedmcc.methods.lloyd import Lloyd
from fedmcc.methods.whitening import Whitening
from fedmcc.networks.momentum import Network
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics import kmeans
from fedmcc.numerics.neighbours import mean_of_rows
from fedmcc.numerics.state_dicts import State

MARGINAL, WHITENING = f"{HEAD}.marginal", f"{HEAD}.whitening"
FOUND = "found"  # note: whether the neighbours were found
MIN_SIZE = 1e-3  # of a cluster relative to the mean size, so that an empty one does not attract all images


@dataclass(frozen=True)
class NeighbourClustering(FederatedKMeans):
    """Federated k-means on principal axes, then votes of nearest neighbours on whitened ones.

    Neighbours are found within each client, once. In whitened features, the means of clusters are the
    directions of linear discriminant analysis, so that prototypes need no training. The sizes of clusters
    that are kept in balance are those of all clients.
    """

    axes: float = 10.0  # principal axes per cluster; 0: all features, not whitened
    excess: float = 10.0  # local centroids per cluster
    images_per_centroid: int = 20  # at least, unless that gives fewer centroids than clusters
    rounds: int = 5  # of votes
    neighbours: int = 20  # that vote, with the image itself
    balance: float = 1.0  # preference for clusters that are small in all clients; 0: sizes are ignored

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "rounds", "neighbours", section="clustering")
        if not 0 <= self.balance < float("inf"):
            raise InputError(f"clustering.balance is {self.balance}: give 0 or more.")

    def stages(self) -> tuple[Stage, ...]:
        """Whitening, unless `axes` is 0, and centroids, in one round each; then rounds of votes."""
        votes = Votes(
            rounds=self.rounds,
            neighbours=self.neighbours,
            balance=self.balance,
            smallest=images_needed(self.smallest),
        )
        stages: tuple[Statistics, ...] = (PrincipalCentroids(method=self), votes)
        return (Whitening(power=self.whiten), *stages) if self.axes else stages


@dataclass(frozen=True, kw_only=True)
class PrincipalCentroids(Centroids):
    """Clients send centroids on principal axes; the server's k-means gives the first prototypes."""

    shared: Parts = (f"{HEAD}.vectors", MARGINAL)
    frozen: Parts = ("online.encoder", WHITENING)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's features on the principal axes, and the number of images of each."""
        head = net.online.cluster_projector
        points, clusters = principal(head, whitened(net, batches)), len(head.vectors.weight)
        found = distinct_points(net, points)
        images = len(found.points)
        limit = max(images // self.method.images_per_centroid, min(clusters, images))
        count = min(int(self.method.excess * clusters), limit)
        return sent(local_centroids(found, count, self.seed, self.smallest))

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, weighted by their numbers of images; its centres are then whitened.

        With many centroids, the sum of squared distances that decides between restarts is nearly that of
        the images.
        """
        vectors, scale = model[VECTORS], model[f"{WHITENING}.axes"].norm(dim=1)
        rows, sizes = gathered(updates, self.counts(updates))
        fitted = kmeans.fit_weighted(rows, min(len(vectors), len(rows)), self.seed, sizes)
        centres = F.normalize(torch.from_numpy(fitted.centres).to(vectors) * scale, dim=1)
        shares = torch.from_numpy(np.bincount(fitted.labels, sizes, len(vectors)) / sizes.sum())
        return Aggregate({VECTORS: repeated(centres, len(vectors)), MARGINAL: shares.to(model[MARGINAL])}, {})


@dataclass(frozen=True, kw_only=True)
class Votes(Lloyd):
    """Clients send the sum and the number of the images for which neighbours vote for each cluster."""

    neighbours: int = 20
    balance: float = 1.0
    unit: bool = True
    smallest: int = SMALLEST_CLUSTER
    name: str = "votes"
    shared: Parts = (f"{HEAD}.vectors", MARGINAL)
    frozen: Parts = ("online.encoder", WHITENING)

    def first_notes(self, net: Any, count: int) -> State:
        """Each image as its own neighbour, until the first round."""
        return {PARTNERS: torch.arange(count)[:, None], FOUND: torch.tensor(False)}

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Sums of whitened features by elected cluster and their counts, in double precision."""
        head, points = net.online.cluster_projector, whitened(net, batches)
        if not net.notes[FOUND]:
            distinct = distinct_images(net, len(points))
            table = nearest_images(principal(head, points), distinct, self.neighbours - 1)
            net.notes |= {PARTNERS: table, FOUND: torch.tensor(True)}
        relative = head.marginal * len(head.marginal) + MIN_SIZE  # sizes of clusters in all clients
        votes = head.assign_points(points) / relative**self.balance
        elected = elect(votes, net.notes[PARTNERS]).cpu()
        sums = torch.zeros(head.vectors.weight.shape, dtype=torch.float64)
        sums.index_add_(0, elected, points.cpu().double())
        return self.large(net, sums, elected)


def whitened(net: Network, batches: Iterable[Tensor]) -> Float[Tensor, "n axes"]:
    """The whitened features of all images, as unit vectors."""
    head = net.online.cluster_projector
    assert isinstance(head, Prototypes)
    return torch.cat([head.whitening(features) for features in encode(net, batches)])


def principal(head: Prototypes, points: Float[Tensor, "n axes"]) -> Float[Tensor, "n axes"]:
    """Whitened features with the variances of their principal axes restored, as unit vectors."""
    return F.normalize(points / head.whitening.axes.norm(dim=1), dim=1)


def elect(votes: Float[Tensor, "n k"], partners: Int64[Tensor, "n neighbours"]) -> Int64[Tensor, " n"]:
    """The cluster with the largest sum of the neighbours' votes, each scaled to a sum of 1."""
    return mean_of_rows(votes / votes.sum(dim=1, keepdim=True), partners).argmax(dim=1)
