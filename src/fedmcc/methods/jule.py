"""JULE: joint unsupervised learning of representations and clusters (Yang, Parikh and Batra, CVPR 2016).

The mean runs over all triplets of a batch; the published program draws some of them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.centroids import Centroids, images_needed, sized
from fedmcc.methods.distinct_images import DistinctPoints
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import PLAIN, ROW, VIEW, Overview, Sights
from fedmcc.methods.lloyd import Seeds
from fedmcc.networks.centres import Centres
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics import agglomeration
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class JULE:
    """Joint unsupervised learning: agglomerated clusters train the encoder, whose features are merged on."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Yang, Parikh and Batra, CVPR",
        2016,
        "a graph of all images of a client",
        cost=0.34,
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    period: int = 4  # epochs between two agglomerations
    merged: float = 0.9  # eta, share of the clusters that an agglomeration merges
    neighbours: int = 20  # K_s, of each image in the graph
    rivals: int = 5  # K_c, nearest clusters that are compared
    margin: float = 0.2
    positive_weight: float = 1.0  # gamma, of the distance within a cluster
    augment: bool = True  # train on random views; false: as published
    smallest: int | None = None  # images of a mean; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        require_positive(self, "period", "neighbours", "rivals", "margin", "positive_weight", "smallest")
        require_fraction(self, "merged")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """An encoder with one centre per cluster on the sphere."""
        return Network(Branch(encoder, cluster_projector=Centres(features, clusters, unit=True)))

    def stages(self) -> tuple[Stage, ...]:
        """Training on clusters that are merged every few epochs, and the centres of the last clusters."""
        sees: Sights = (VIEW if self.augment else PLAIN, ROW)
        recurrence = Recurrence(rounds=self.rounds, epochs=self.epochs, method=self, sees=sees)
        return (recurrence, Naming(method=self, smallest=images_needed(self.smallest)))


class Outputs(NamedTuple):
    """Unit features of each image, and its cluster at this client."""

    z: Tensor
    cluster: Tensor


@dataclass(frozen=True, kw_only=True)
class Recurrence(Stage):
    """Images are nearer to those of their cluster than to others by a margin; clusters stay at the client."""

    method: JULE
    name: str = "recurrence"
    trained: Parts = ("online.encoder",)
    shared: Parts = ("online.encoder",)

    def first_notes(self, net: Network, count: int) -> State:
        """Clusters of two images."""
        return {"cluster": torch.arange(count) // 2}

    def prepare(self, net: Network, overview: Overview) -> None:
        """First join nearest images by their pixels, then merge clusters by their features every period."""
        if overview.epoch == 0:
            pixels = overview.features(lambda batch: F.normalize(batch.flatten(1), dim=1))
            labels = agglomeration.first_clusters(pixels)
        elif overview.epoch % self.method.period == 0:
            z = overview.features(lambda batch: F.normalize(net.online.encoder(batch), dim=1))
            labels = self._merged(z, net.notes["cluster"].cpu().numpy(), _centres(net))
        else:
            return
        net.notes["cluster"] = torch.from_numpy(labels).to(net.notes["cluster"].device)

    def _merged(self, z: Tensor, labels: agglomeration.Labels, clusters: int) -> agglomeration.Labels:
        """The clusters that are left when a share of them is merged."""
        count = int(labels.max()) + 1
        left = max(clusters, count - math.ceil(self.method.merged * count))
        graph = agglomeration.neighbour_graph(z, self.method.neighbours)
        return agglomeration.merge(graph, labels, left, self.method.rivals)

    def represent(self, net: Network, images: Tensor, rows: Tensor) -> Outputs:
        """The unit features and the clusters of the images."""
        return Outputs(F.normalize(net.online.encoder(images), dim=1), net.notes["cluster"][rows])

    def loss(self, outputs: Outputs) -> Tensor:
        """The mean loss of all triplets."""
        return triplet_loss(outputs.z, outputs.cluster, self.method.margin, self.method.positive_weight)


def triplet_loss(
    z: Float[Tensor, "n d"], cluster: Int64[Tensor, " n"], margin: float, weight: float
) -> Float[Tensor, ""]:
    """Mean of max(0, weight |a - p|² - |a - n|² + margin) over p in the cluster of a and n in others."""
    distances = 2 - 2 * z @ z.T
    same = cluster[:, None] == cluster
    others = (~same).to(z.dtype)
    positives = (same & ~torch.eye(len(z), dtype=torch.bool, device=z.device)).to(z.dtype)
    losses = F.relu(weight * distances[:, :, None] - distances[:, None, :] + margin)
    total = torch.einsum("apn,ap,an->", losses, positives, others)
    return total / (positives.sum(dim=1) @ others.sum(dim=1)).clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class Naming(Seeds):
    """Clients agglomerate their features once more, and send the mean and the size of each cluster."""

    method: JULE
    name: str = "naming"
    unit: bool = True

    def centroids(self, found: DistinctPoints, centres: int) -> Centroids:
        """The means of agglomerated clusters; those of too few images are joined to the nearest one."""
        points = torch.from_numpy(found.points)
        graph = agglomeration.neighbour_graph(points, self.method.neighbours)
        first = agglomeration.first_clusters(points)
        labels = agglomeration.merge(graph, first, centres, self.method.rivals)
        return sized(*agglomeration.means(found.points, labels, self.smallest), found.copies)


def _centres(net: Network) -> int:
    assert isinstance(net.online.cluster_projector, Centres)
    return len(net.online.cluster_projector.vectors.weight)
