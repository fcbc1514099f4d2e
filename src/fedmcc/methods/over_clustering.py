"""What IIC and PICA share: heads with more clusters beside the main heads, all of them trained in every step.

The publications train the two kinds of heads in turns, and replace colours by edges.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.best_head import BestHead
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.inputs import PLAIN, VIEW
from fedmcc.networks.heads import Heads
from fedmcc.networks.momentum import Branch, Network


class OverClustering(Network):
    """A branch whose cluster projector has several heads, and further heads with more clusters."""

    def __init__(self, online: Branch, over: Heads) -> None:
        super().__init__(online)
        self.over = over


class Outputs(NamedTuple):
    """Soft assignments by all heads of both kinds: of the image, and of each of its views."""

    y: Tensor
    views: Tensor
    over: Tensor
    over_views: Tensor


@dataclass(frozen=True, kw_only=True)
class Agreement(BestHead):
    """Images and their views belong to the same clusters; a subclass defines `losses`."""

    balance: float
    name: str = "agreement"
    trained: Parts = ("online", "over")
    shared: Parts = ("online", "over")

    @abstractmethod
    def losses(self, y: Tensor, views: Tensor) -> Tensor:
        """The loss of each head, given its assignments of images and of their views."""

    def represent(self, net: OverClustering, plain: Tensor, *views: Tensor) -> Outputs:
        """Assign the images and their views by every head."""
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

    def by_head(self, outputs: Outputs) -> Tensor:
        """The loss of each main head."""
        return self.losses(outputs.y, outputs.views)

    def loss(self, outputs: Outputs) -> Tensor:
        """The mean over the heads of each kind, added."""
        return self.by_head(outputs).mean() + self.losses(outputs.over, outputs.over_views).mean()


@dataclass(frozen=True)
class OverClusteringMethod:
    """Options and network of a method whose only stage is an `Agreement`."""

    rounds: int = 100  # R
    epochs: int = 1  # E
    heads: int = 1  # of each kind; the one with the smallest loss is used
    over: float = 5.0  # clusters of an over-clustering head per cluster
    repeats: int = 2  # views of each image in a batch
    balance: float = 1.0  # weight of equal cluster sizes

    stage: ClassVar[type[Agreement]]

    def __post_init__(self) -> None:
        require_positive(self, "heads", "over", "repeats", "balance")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> OverClustering:
        """An encoder with linear heads of both kinds."""
        counts = (clusters, round(self.over * clusters))
        main, over = (Heads(features, count, self.heads) for count in counts)
        return OverClustering(Branch(encoder, cluster_projector=main), over)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and heads."""
        sees = (PLAIN, *self.repeats * (VIEW,))
        stage = self.stage(
            rounds=self.rounds, epochs=self.epochs, heads=self.heads, balance=self.balance, sees=sees
        )
        return (stage,)
