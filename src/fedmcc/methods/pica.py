"""PICA: partition confidence maximisation (Huang, Gong and Zhu, CVPR 2020)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.losses import cluster_balance
from fedmcc.methods.about import About
from fedmcc.methods.over_clustering import Agreement, OverClusteringMethod


@dataclass(frozen=True, kw_only=True)
class Partition(Agreement):
    """Contrast each cluster of the images with the clusters of their views."""

    name: str = "partition"

    def losses(self, y: Tensor, views: Tensor) -> Tensor:
        """Uncertainty of the partition, and the distance of the cluster sizes from equal ones, by head."""
        repeated = y.repeat_interleave(views.shape[1], dim=0).unbind(dim=1)
        pairs = zip(repeated, views.flatten(0, 1).unbind(dim=1), strict=True)
        uncertain = [partition_uncertainty(head, of_views) for head, of_views in pairs]
        uneven = [imbalance(head) for head in y.unbind(dim=1)]
        return torch.stack(uncertain) + self.balance * torch.stack(uneven)


@dataclass(frozen=True)
class PICA(OverClusteringMethod):
    """Partition confidence maximisation: clusters of images and of their views contain the same images."""

    about: ClassVar[About] = About("centralized deep clustering", "Huang, Gong and Zhu, CVPR", 2020, cost=1.0)

    over: float = 7.0  # clusters of an over-clustering head per cluster
    balance: float = 2.0  # weight of equal cluster sizes

    stage = Partition


def partition_uncertainty(a: Float[Tensor, "n k"], b: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Cross-entropy of finding each column of a among the columns of b by cosine similarity."""
    similarity = F.normalize(a, dim=0).T @ F.normalize(b, dim=0)
    return F.cross_entropy(similarity, torch.arange(a.shape[1], device=a.device))


def imbalance(y: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """log k - H of the cluster sizes: 0 if they are equal."""
    return math.log(y.shape[1]) - cluster_balance(y)
