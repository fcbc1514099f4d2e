"""Federated k-means on frozen features: two rounds that exchange small statistics, without gradients."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import (
    FEW_CENTROIDS,
    HEAD,
    VECTORS,
    Statistics,
    centroids_error,
    encode,
    gathered,
    images_needed,
    local_centroids,
    repeated,
    sent,
)
from fedmcc.methods.distinct_images import distinct_points
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.whitening import Whitening
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FederatedKMeans:
    """k-means on all clients' features: clients send centroids, and the server clusters the centroids.

    The features are first whitened on their principal axes, computed from the sum of the clients' moments.
    Otherwise, directions that all images of a client share dominate those that separate the classes. A
    centroid of one image would be its features: `smallest` sets how many images it must represent.
    """

    axes: float = 2.0  # whitened axes per cluster; 0: no whitening
    whiten: float = 1.0  # 1: variance 1 on all axes; 0: principal axes with their variances
    excess: float = 2.0  # local centroids per prototype
    images_per_centroid: int = 30  # at least, unless that gives fewer centroids than clusters
    temperature: float = 0.1  # of the soft assignments
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        names = ("excess", "images_per_centroid", "temperature", "smallest")
        require_positive(self, *names, section="clustering")
        if not 0 <= self.axes < math.inf:
            raise InputError(f"clustering.axes is {self.axes}: give 0 or more.")
        require_fraction(self, "whiten", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head with one prototype per cluster to the network."""
        axes = min(features, round(self.axes * clusters)) or features
        set_cluster_projector(net, Prototypes(features, clusters, clusters, axes, self.temperature))

    def stages(self) -> tuple[Stage, ...]:
        """Whitening, unless `axes` is 0, and centroids: one round each, without training."""
        centroids = Centroids(method=self)
        return (Whitening(power=self.whiten), centroids) if self.axes else (centroids,)


@dataclass(frozen=True, kw_only=True)
class Centroids(Statistics):
    """Clients send centroids and their sizes; the server's weighted k-means gives the prototypes."""

    method: FederatedKMeans
    seed: int = 0  # of the initial centres
    name: str = "centroids"

    @property
    def smallest(self) -> int:
        """Number of images that a centroid must represent to be sent."""
        return images_needed(self.method.smallest)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's whitened features, and the number of images of each."""
        head = net.online.cluster_projector
        found = distinct_points(net, torch.cat([head.whitening(x).cpu() for x in encode(net, batches)]))
        images, clusters = len(found.points), len(head.vectors.weight)
        limit = max(images // self.method.images_per_centroid, min(clusters, images))
        count = min(int(self.method.excess * clusters), limit)
        return sent(local_centroids(found, count, self.seed, self.smallest))

    def extras_error(self, update: Update) -> str:
        """Check that there are no more centroids than asked for, in the unit ball, and check their sizes."""
        prototypes, axes = update.weights[VECTORS].shape
        return centroids_error(update, int(self.method.excess * prototypes), axes, self.smallest)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, weighted by their numbers of images."""
        vectors = model[VECTORS]
        rows, sizes = gathered(updates, self.counts(updates))
        if len(rows) < len(vectors):
            log.warning(FEW_CENTROIDS, len(rows), len(vectors))
        fitted = kmeans.fit_weighted(kmeans.unit_rows(rows), min(len(vectors), len(rows)), self.seed, sizes)
        shares = torch.from_numpy(np.bincount(fitted.labels, sizes, len(vectors)) / sizes.sum())
        centres = repeated(torch.from_numpy(fitted.centres).to(vectors), len(vectors))
        return Aggregate({VECTORS: centres, f"{HEAD}.marginal": shares.to(model[f"{HEAD}.marginal"])}, {})
