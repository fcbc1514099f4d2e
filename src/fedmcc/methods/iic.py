"""IIC: invariant information clustering (Ji, Henriques and Vedaldi, ICCV 2019), with linear heads."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedmcc.methods.about import About
from fedmcc.methods.over_clustering import Agreement, OverClusteringMethod

MIN_PROBABILITY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Information(Agreement):
    """Maximise the mutual information of the assignments of an image and of its views."""

    name: str = "information"

    def losses(self, y: Tensor, views: Tensor) -> Tensor:
        """Minus the mutual information of each head."""
        return -information(y, views, self.balance)


@dataclass(frozen=True)
class IIC(OverClusteringMethod):
    """Invariant information clustering: maximise what the cluster of an image says about that of a view."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Ji, Henriques and Vedaldi, ICCV",
        2019,
        "batches of twice the over-clusters",
        cost=1.0,
    )

    heads: int = 5  # of each kind; the one with the smallest loss is used
    balance: float = 1.0  # lambda, the weight of the marginal entropies

    stage = Information


def information(
    y: Float[Tensor, "n heads k"], views: Float[Tensor, "n r heads k"], balance: float
) -> Float[Tensor, " heads"]:
    """Mutual information of the clusters of images and views by each head; `balance` weights entropies.

    Computed in double precision: at first it is a small difference of large terms.
    """
    joint = torch.einsum("nhk,nrhl->hkl", y.double(), views.double()) / (views.shape[0] * views.shape[1])
    joint = ((joint + joint.mT) / 2).clamp_min(MIN_PROBABILITY)
    rows, columns = joint.sum(dim=2, keepdim=True).log(), joint.sum(dim=1, keepdim=True).log()
    return (joint * (joint.log() - balance * rows - balance * columns)).sum(dim=(1, 2)).to(y.dtype)
