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
from fedmcc.methods.base import Aggregate, Parts, Stage, require_positive
from fedmcc.methods.extras import add_up, extras_mismatch
from fedmcc.methods.federated_kmeans import HEAD, encode
from fedmcc.methods.lloyd import VECTORS, Seeds
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
    smallest: int = 1  # images that a centroid must represent to be sent

    def __post_init__(self) -> None:
        require_positive(self, "landmarks", "neighbours", "excess", "smallest", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of landmarks to the network."""
        count = max(clusters, round(self.landmarks * clusters))
        set_cluster_projector(net, Landmarks(features, clusters, count, self.neighbours))

    def stages(self) -> tuple[Stage, ...]:
        """Seeds, the width of the affinity and the cut: one round each, without training."""
        return (Seeds(excess=self.excess, smallest=self.smallest), Width(), Cut())


@dataclass(frozen=True, kw_only=True)
class Width(Stage):
    """The width of the affinity is the mean distance of all images to their last neighbour."""

    name: str = "width"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum of the distances to the last of the nearest landmarks."""
        head = net.online.cluster_projector
        last = [head.nearest(features.double())[0][:, -1].sqrt().sum() for features in encode(net, batches)]
        return {"distances": torch.stack(last).sum()}

    def extras_error(self, update: Update) -> str:
        """Check that the sum of distances is not negative."""
        if mismatch := extras_mismatch(update.extras, {"distances": (torch.float64, ())}):
            return mismatch
        return "Its sum of distances is negative." if float(update.extras["distances"]) < 0 else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The mean over all images."""
        counts = self.counts(updates)
        total = add_up(updates, "distances", counts)
        return Aggregate({WIDTH: (total / sum(counts)).to(model[WIDTH])}, {})


@dataclass(frozen=True, kw_only=True)
class Cut(Stage):
    """Clients send the affinities of the landmarks on their images; the server cuts the sum."""

    name: str = "cut"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum over images of w wᵀ, where w are the weights of the landmarks."""
        head = net.online.cluster_projector
        affinity = torch.zeros(2 * (len(head.groups),), dtype=torch.float64)
        for features in encode(net, batches):
            weights = head.weights(features.double()).cpu()
            affinity += weights.T @ weights
        return {"affinity": affinity}

    def extras_error(self, update: Update) -> str:
        """Check that the affinities can be those of weights that sum to 1 for each image."""
        count = len(update.weights[GROUPS])
        if mismatch := extras_mismatch(update.extras, {"affinity": (torch.float64, (count, count))}):
            return mismatch
        affinity = update.extras["affinity"]
        off = abs(float(affinity.sum()) - update.samples) > 1e-2 * update.samples
        if off or (affinity < 0).any() or not torch.allclose(affinity, affinity.T):
            return "Its affinities are not those of weights that sum to 1 for each image."
        return ""

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
