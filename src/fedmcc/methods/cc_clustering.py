"""CC's cluster loss for a new head on a frozen encoder, without a target network: the paper's FedU + CC."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmcc.losses import cluster_balance, nt_xent
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.hyperparameters import require_positive, require_view_pairs
from fedmcc.networks.heads import cluster_projector
from fedmcc.networks.momentum import set_cluster_projector
from fedmcc.networks.replay import without_gradient


@dataclass(frozen=True)
class CCClustering:
    """CC's cluster contrast trains a new head on the frozen encoder, without a target network."""

    rounds: int = 10  # R
    epochs: int = 5  # E
    temperature: float = 1.0  # tau_C
    entropy_weight: float = 1.0  # weight of the entropies, which are maximised (D2)
    positive_in_denominator: bool = True  # D1
    hidden: int | None = None  # width of the projector; None: the number of features
    views_per_image: int = 8  # views whose features are cached; 0: new views in every step
    unlabelled: bool = True  # use images without a label too (D16)

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "hidden", section="clustering")
        require_view_pairs(self, section="clustering")

    def extend(self, net: Any, features: int, clusters: int) -> None:
        """Add a cluster projector to the network."""
        set_cluster_projector(net, cluster_projector(features, self.hidden or features, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """One stage."""
        stage = Clustering(rounds=self.rounds, epochs=self.epochs, method=self)
        return (replace(stage, views_per_image=self.views_per_image, labelled_only=not self.unlabelled),)


class Outputs(NamedTuple):
    """Soft assignments of both views, one row per image."""

    y_a: Tensor
    y_b: Tensor


@dataclass(frozen=True, kw_only=True)
class Clustering(Stage):
    """Contrast the clusters of both views; both have a gradient."""

    method: CCClustering
    name: str = "clustering"
    trained: Parts = (HEAD,)
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)
    encoder: str = "online.encoder"

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Outputs:
        """Assign both views by the features of the frozen encoder."""
        online = net.online
        if not self.on_features:
            a, b = without_gradient(lambda: (online.encoder(a), online.encoder(b)))
        return Outputs(*online.assign(torch.cat((a, b))).chunk(2))

    def loss(self, outputs: Outputs) -> Tensor:
        """NT-Xent of the columns, which represent clusters, with the entropies maximised (D2)."""
        method, (y_a, y_b) = self.method, outputs
        contrast = nt_xent(y_a.T, y_b.T, method.temperature, method.positive_in_denominator)
        return contrast - method.entropy_weight * (cluster_balance(y_a) + cluster_balance(y_b))
