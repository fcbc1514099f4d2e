"""IIC: invariant information clustering (Ji, Henriques and Vedaldi, ICCV 2019), with linear heads.

Main and over-clustering heads are trained in every step, not in turns, and colours are not replaced by edges.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.methods.base import Parts, Stage, require_positive
from fedmcc.methods.best_head import BestHead
from fedmcc.methods.inputs import PLAIN, VIEW
from fedmcc.networks.heads import Heads
from fedmcc.networks.momentum import Branch, Network

MIN_PROBABILITY = 1e-9


class OverClustering(Network):
    """A branch whose cluster projector has several heads, and further heads with more clusters."""

    def __init__(self, online: Branch, over: Heads) -> None:
        super().__init__(online)
        self.over = over


@dataclass(frozen=True)
class IIC:
    """Invariant information clustering: maximise what the cluster of an image says about that of a view."""

    rounds: int = 100  # R
    epochs: int = 1  # E
    heads: int = 5  # of each kind; the one with the smallest loss is used
    over: float = 5.0  # clusters of an over-clustering head per cluster
    repeats: int = 2  # views of each image in a batch
    balance: float = 1.0  # lambda, the weight of the marginal entropies

    def __post_init__(self) -> None:
        require_positive(self, "heads", "over", "repeats", "balance")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> OverClustering:
        """An encoder with linear heads of both kinds."""
        return over_clustering(encoder, features, (clusters, round(self.over * clusters)), self.heads)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and heads."""
        sees = (PLAIN, *self.repeats * (VIEW,))
        stage = Information(
            rounds=self.rounds, epochs=self.epochs, heads=self.heads, balance=self.balance, sees=sees
        )
        return (stage,)


def over_clustering(
    encoder: nn.Module, features: int, clusters: tuple[int, int], heads: int
) -> OverClustering:
    """An encoder with main heads and over-clustering heads of these numbers of clusters."""
    main, over = (Heads(features, count, heads) for count in clusters)
    return OverClustering(Branch(encoder, cluster_projector=main), over)


class Outputs(NamedTuple):
    """Soft assignments by all heads of both kinds: of the image, and of each of its views."""

    y: Tensor
    views: Tensor
    over: Tensor
    over_views: Tensor


@dataclass(frozen=True, kw_only=True)
class Information(BestHead):
    """Maximise the mutual information of the assignments of an image and of its views."""

    balance: float
    name: str = "information"
    trained: Parts = ("online", "over")
    shared: Parts = ("online", "over")

    def represent(self, net: OverClustering, plain: Tensor, *views: Tensor) -> Outputs:
        """Assign the images and their views by every head."""
        return assign_all(net, plain, views)

    def by_head(self, outputs: Outputs) -> Tensor:
        """Minus the mutual information of each main head."""
        return -information(outputs.y, outputs.views, self.balance)

    def loss(self, outputs: Outputs) -> Tensor:
        """The mean over the heads of each kind, added."""
        over = -information(outputs.over, outputs.over_views, self.balance)
        return self.by_head(outputs).mean() + over.mean()


def assign_all(net: OverClustering, plain: Tensor, views: tuple[Tensor, ...]) -> Outputs:
    """Soft assignments of images and their views by the heads of both kinds."""
    main = net.online.cluster_projector
    assert isinstance(main, Heads)
    features, of_views = net.online.encoder(plain), [net.online.encoder(view) for view in views]
    y, over = main.all(features), net.over.all(features)
    return Outputs(
        y,
        torch.stack([main.all(each) for each in of_views], dim=1),
        over,
        torch.stack([net.over.all(each) for each in of_views], dim=1),
    )


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
