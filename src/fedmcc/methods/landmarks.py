"""Spectral clustering by landmarks (Chen and Cai, AAAI 2011), federated.

A graph of all images does not fit in memory and cannot assign new images. Here the graph connects landmarks,
the centroids of all images, by how many images have both among their nearest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import (
    HEAD,
    VECTORS,
    Centroids,
    Statistics,
    encode,
    images_needed,
    local_centroids,
    longest,
)
from fedmcc.methods.distinct_images import DistinctPoints
from fedmcc.methods.extras import Additive, add_up, additive_mismatch, affinity_error
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.lloyd import Seeds
from fedmcc.networks.landmarks import Landmarks
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics.normalized_cut import cut
from fedmcc.numerics.state_dicts import State

GROUPS, WIDTH = f"{HEAD}.groups", f"{HEAD}.width"


@dataclass(frozen=True)
class LandmarkSpectral:
    """Spectral clustering of all clients' features through landmarks, whose graph is cut into clusters."""

    landmarks: float = 50.0  # per cluster; all of them should be at most a fifth of the images
    neighbours: int = 5  # nearest landmarks of an image
    excess: float = 1.0  # centroids of a client per landmark
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        require_positive(self, "landmarks", "neighbours", "excess", "smallest", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of landmarks to the network."""
        count = max(clusters, round(self.landmarks * clusters))
        set_cluster_projector(net, Landmarks(features, clusters, count, self.neighbours))

    def stages(self) -> tuple[Stage, ...]:
        """Seeds, the width of the affinity and the cut: one round each, without training."""
        smallest = images_needed(self.smallest)
        return (LandmarkSeeds(excess=self.excess, smallest=smallest), Width(), Cut())


@dataclass(frozen=True, kw_only=True)
class LandmarkSeeds(Seeds):
    """Landmarks only have to cover the images: one k-means finds them, without restarts."""

    def centroids(self, found: DistinctPoints, centres: int) -> Centroids:
        """Centroids of the points, and the number of images of each."""
        count = max(1, min(int(self.excess * centres), len(found.points)))
        return local_centroids(found, count, self.seed, self.smallest, restarts=1)


@dataclass(frozen=True, kw_only=True)
class Width(Statistics):
    """The width of the affinity is the mean distance of all images to their last neighbour."""

    name: str = "width"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum of the distances to the last of the nearest landmarks."""
        head = net.online.cluster_projector
        last = [head.nearest(features.double())[0][:, -1].sqrt().sum() for features in encode(net, batches)]
        return {"distances": torch.stack(last).sum()}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The sum of distances."""
        return {"distances": Additive(torch.float64, (), is_sum=True)}

    def extras_error(self, update: Update) -> str:
        """Check that the sum of distances is not negative and that features can have such distances."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        total = float(update.extras["distances"])
        most = 2 * longest(update.weights[VECTORS].shape[1], unit=False) * update.samples
        if total < 0:
            return "Its sum of distances is negative."
        return "" if total <= most else "Its sum of distances is larger than its images can have."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The mean over all images."""
        counts = self.counts(updates)
        total = add_up(updates, "distances", counts)
        return Aggregate({WIDTH: (total / sum(counts)).to(model[WIDTH])}, {})


@dataclass(frozen=True, kw_only=True)
class Cut(Statistics):
    """Clients send the affinities of the landmarks on their images; the server cuts the sum."""

    name: str = "cut"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum over images of w wᵀ, where w are the weights of the landmarks."""
        head = net.online.cluster_projector
        affinity = torch.zeros(2 * (len(head.groups),), dtype=torch.float64)
        for features in encode(net, batches):
            weights = head.weights(features.double()).cpu()
            affinity += weights.T @ weights
        return {"affinity": affinity}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The sum of w wᵀ."""
        return {"affinity": Additive(torch.float64, (len(weights[GROUPS]),) * 2, is_sum=True)}

    def extras_error(self, update: Update) -> str:
        """Check that the affinities can be those of weights that sum to 1 for each image."""
        return affinity_error(update, len(update.weights[GROUPS]))

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Group the landmarks by the normalised cut; equal landmarks are one node."""
        affinity = add_up(updates, "affinity", self.counts(updates))
        clusters = model[GROUPS].shape[1]
        nodes = torch.unique(model[VECTORS], dim=0, return_inverse=True)[1]
        onto = torch.eye(int(nodes.max()) + 1, dtype=torch.float64)[nodes]
        parts = torch.from_numpy(cut((onto.T @ affinity @ onto).numpy(), clusters, balance=0.0)).long()
        groups = torch.eye(clusters)[parts[nodes]].to(model[GROUPS])
        sizes = affinity.sum(dim=1).to(groups) @ groups
        return Aggregate({GROUPS: groups, f"{HEAD}.marginal": sizes / sizes.sum()}, {})
