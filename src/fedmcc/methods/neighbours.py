"""Federated clustering by nearest neighbours on a frozen encoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage, require_positive
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.inputs import PARTNER_ROW, ROW, Overview, Sights
from fedmcc.methods.neighbour_agreement import SHARES, Assigned, NeighbourAgreement
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.state_dicts import State

VECTORS, WHITENING = f"{HEAD}.vectors", f"{HEAD}.whitening"
POINTS = "points"  # note: the whitened features of each image


@dataclass(frozen=True)
class NeighbourClustering(FederatedKMeans):
    """Federated k-means whose prototypes are then trained to assign an image as its nearest neighbours.

    Neighbours are found within each client, once. The cluster sizes that are kept in balance are those of all
    clients. A round sends the prototypes and one number per cluster.
    """

    axes: float = 10.0  # principal axes per cluster; 0: all features
    whiten: float = 0.0  # 1: variance 1 on all axes; 0: principal axes with their variances
    rounds: int = 20
    epochs: int = 1  # E
    neighbours: int = 20  # k, with the image itself
    entropy_weight: float = 2.0  # lambda, of all clients' cluster sizes
    rate: float = 10.0  # learning rate, as a multiple of training.learning_rate

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "neighbours", "entropy_weight", "rate", section="clustering")

    def stages(self) -> tuple[Stage, ...]:
        """The stages of federated k-means, then the training of its prototypes."""
        *before, centroids = super().stages()
        frozen = ("online.encoder", WHITENING)
        training = Consistency(
            rounds=self.rounds,
            epochs=self.epochs,
            neighbours=self.neighbours,
            entropy_weight=self.entropy_weight,
            learning_rate_factor=self.rate,
        )
        return (*before, replace(centroids, shared=(VECTORS,), frozen=frozen), training)


@dataclass(frozen=True, kw_only=True)
class Consistency(NeighbourAgreement):
    """Train the prototypes on the whitened features of images and their neighbours, computed once."""

    name: str = "neighbours"
    weight: str = f"{VECTORS}.weight"
    trained: Parts = (VECTORS,)
    shared: Parts = (VECTORS,)
    frozen: Parts = ("online.encoder", WHITENING)
    sees: Sights = (ROW, PARTNER_ROW)
    unknown: float = 1e9  # sizes equal and large: no effect on the balance until the sizes are known

    def first_notes(self, net: Any, count: int) -> State:
        """Images on the axes in turn, until the first epoch replaces them by their whitened features."""
        axes = torch.eye(len(net.online.cluster_projector.whitening.axes))
        return {**super().first_notes(net, count), POINTS: axes[torch.arange(count) % len(axes)]}

    def points(self, net: Any, overview: Overview) -> Tensor:
        """The whitened features, which are stored as notes."""
        head = net.online.cluster_projector
        points = overview.features(lambda batch: head.whitening(net.online.encoder(batch).float()))
        net.notes[POINTS] = points
        return points

    def represent(self, net: Any, rows: Tensor, partners: Tensor) -> Assigned:
        """Assign both by the prototypes."""
        head: Prototypes = net.online.cluster_projector
        y, neighbour = (head.assign_points(net.notes[POINTS][each]) for each in (rows, partners[:, 0]))
        return self.assigned(net, y[:, None], neighbour[:, None])

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the prototypes; the shares of the clusters in all images become part of the head."""
        weights, extras = super().combine(updates, model)
        sizes = extras[SHARES][0]
        marginal = (sizes / sizes.sum()).to(model[f"{HEAD}.marginal"])
        return Aggregate({**weights, f"{HEAD}.marginal": marginal}, extras)
