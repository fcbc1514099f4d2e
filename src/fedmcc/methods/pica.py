"""PICA: partition confidence maximisation (Huang, Gong and Zhu, CVPR 2020).

Main and over-clustering heads are trained in every step, not in turns, and colours are not replaced by edges.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.losses import cluster_balance
from fedmcc.methods.base import Parts, Stage, require_positive
from fedmcc.methods.best_head import BestHead
from fedmcc.methods.iic import Outputs, OverClustering, assign_all, over_clustering
from fedmcc.methods.inputs import PLAIN, VIEW


@dataclass(frozen=True)
class PICA:
    """Partition confidence maximisation: clusters of images and of their views contain the same images."""

    rounds: int = 100  # R
    epochs: int = 1  # E
    heads: int = 1  # of each kind; the one with the smallest loss is used
    over: float = 7.0  # clusters of an over-clustering head per cluster
    repeats: int = 2  # views of each image in a batch
    balance: float = 2.0  # weight of equal cluster sizes

    def __post_init__(self) -> None:
        require_positive(self, "heads", "over", "repeats", "balance")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> OverClustering:
        """An encoder with linear heads of both kinds."""
        return over_clustering(encoder, features, (clusters, round(self.over * clusters)), self.heads)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and heads."""
        sees = (PLAIN, *self.repeats * (VIEW,))
        stage = Partition(
            rounds=self.rounds, epochs=self.epochs, heads=self.heads, balance=self.balance, sees=sees
        )
        return (stage,)


@dataclass(frozen=True, kw_only=True)
class Partition(BestHead):
    """Contrast each cluster of the images with the clusters of their views."""

    balance: float
    name: str = "partition"
    trained: Parts = ("online", "over")
    shared: Parts = ("online", "over")

    def represent(self, net: OverClustering, plain: Tensor, *views: Tensor) -> Outputs:
        """Assign the images and their views by every head."""
        return assign_all(net, plain, views)

    def by_head(self, outputs: Outputs) -> Tensor:
        """The loss of each main head."""
        return self._losses(outputs.y, outputs.views)

    def loss(self, outputs: Outputs) -> Tensor:
        """The mean over the heads of each kind, added."""
        return self.by_head(outputs).mean() + self._losses(outputs.over, outputs.over_views).mean()

    def _losses(self, y: Tensor, views: Tensor) -> Tensor:
        """Uncertainty of the partition, and the distance of the cluster sizes from equal ones, by head."""
        repeated = y.repeat_interleave(views.shape[1], dim=0).unbind(dim=1)
        pairs = zip(repeated, views.flatten(0, 1).unbind(dim=1), strict=True)
        uneven = [math.log(y.shape[2]) - cluster_balance(head) for head in y.unbind(dim=1)]
        uncertain = [partition_uncertainty(head, of_views) for head, of_views in pairs]
        return torch.stack(uncertain) + self.balance * torch.stack(uneven)


def partition_uncertainty(a: Float[Tensor, "n k"], b: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Cross-entropy of finding each column of a among the columns of b by cosine similarity."""
    similarity = F.normalize(a, dim=0).T @ F.normalize(b, dim=0)
    return F.cross_entropy(similarity, torch.arange(a.shape[1], device=a.device))
