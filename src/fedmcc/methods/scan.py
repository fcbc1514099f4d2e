"""SCAN: semantic clustering by adopting nearest neighbours (Van Gansbeke et al., ECCV 2020)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.losses import cluster_balance
from fedmcc.methods.base import Parts, Stage, require_fraction, require_positive
from fedmcc.methods.best_head import BestHead
from fedmcc.methods.federated_kmeans import HEAD
from fedmcc.methods.fedsimclr import FedSimCLR, Representation
from fedmcc.methods.inputs import PARTNER, PARTNERS, PLAIN, VIEW, Overview, Sights
from fedmcc.networks.heads import Heads, Norm
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.neighbours import nearest
from fedmcc.numerics.state_dicts import State

TRAINED = ("online.encoder", HEAD)


@dataclass(frozen=True)
class SCAN:
    """SCAN: SimCLR, then clusters that an image shares with its nearest neighbours, then self-labelling."""

    rounds: int = 100  # of SimCLR
    epochs: int = 1  # E, in every stage
    neighbour_rounds: int = 25  # rounds of clustering by neighbours
    label_rounds: int = 10  # rounds of self-labelling
    neighbours: int = 20  # k, with the image itself
    heads: int = 5  # the one with the smallest loss is used
    entropy_weight: float = 5.0  # lambda
    confidence: float = 0.99  # of images that label themselves
    label_rate: float = 0.1  # learning rate of self-labelling, as a multiple of training.learning_rate
    temperature: float = 0.5  # of SimCLR
    hidden: int = 512  # width of the projector
    projections: int = 128
    norm: Norm = "batch"  # normalisation of the projector

    def __post_init__(self) -> None:
        require_positive(self, "neighbour_rounds", "label_rounds", "neighbours", "heads", "entropy_weight")
        require_positive(self, "label_rate", "temperature", "hidden", "projections")
        require_fraction(self, "confidence")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """SimCLR's branch with linear heads."""
        net = self._simclr.build(encoder, features, clusters)
        set_cluster_projector(net, Heads(features, clusters, self.heads))
        return net

    def stages(self) -> tuple[Stage, ...]:
        """Representation, neighbours and self-labelling."""
        parts: Parts = ("online.encoder", "online.instance_projector")
        simclr = Representation(
            rounds=self.rounds, epochs=self.epochs, method=self._simclr, trained=parts, shared=parts
        )
        neighbours = Neighbours(
            rounds=self.neighbour_rounds, epochs=self.epochs, heads=self.heads, method=self
        )
        labels = SelfLabelling(
            rounds=self.label_rounds,
            epochs=self.epochs,
            confidence=self.confidence,
            learning_rate_factor=self.label_rate,
        )
        return (simclr, neighbours, labels)

    @property
    def _simclr(self) -> FedSimCLR:
        return FedSimCLR(
            temperature=self.temperature, hidden=self.hidden, projections=self.projections, norm=self.norm
        )


class Assigned(NamedTuple):
    """Soft assignments of a view and of a neighbour's view by all heads."""

    y: Tensor
    neighbour: Tensor


@dataclass(frozen=True, kw_only=True)
class Neighbours(BestHead):
    """An image and its neighbours, found once at each client, belong to one cluster."""

    method: SCAN
    name: str = "neighbours"
    trained: Parts = TRAINED
    shared: Parts = TRAINED
    sees: Sights = (VIEW, PARTNER)

    def first_notes(self, net: Network, count: int) -> State:
        """Each image as its own neighbour, and the losses of the heads."""
        return {PARTNERS: torch.arange(count)[:, None, None], **super().first_notes(net, count)}

    def prepare(self, net: Network, overview: Overview) -> None:
        """Find the neighbours before the first epoch, by the cosine of projections."""
        super().prepare(net, overview)
        if overview.epoch:
            return
        z = overview.features(lambda batch: net.online.instance(net.online.encoder(batch)))
        others = nearest(F.normalize(z, dim=1), self.method.neighbours - 1)[0]
        own = torch.arange(len(z), device=z.device)[:, None]
        net.notes[PARTNERS] = torch.cat([own, others], dim=1)[:, None]

    def represent(self, net: Network, view: Tensor, neighbour: Tensor) -> Assigned:
        """Assign both views by every head."""
        heads = net.online.cluster_projector
        assert isinstance(heads, Heads)
        return Assigned(heads.all(net.online.encoder(view)), heads.all(net.online.encoder(neighbour)))

    def by_head(self, outputs: Assigned) -> Tensor:
        """-log y·y' minus the weighted entropy of the cluster sizes, for each head."""
        agreement = (outputs.y * outputs.neighbour).sum(dim=2).clamp_min(1e-8).log().mean(dim=0)
        entropy = torch.stack([cluster_balance(head) for head in outputs.y.unbind(dim=1)])
        return -agreement - self.method.entropy_weight * entropy

    def loss(self, outputs: Assigned) -> Tensor:
        """The mean over the heads."""
        return self.by_head(outputs).mean()


class Labelled(NamedTuple):
    """The soft assignment of the image, without gradient, and of its view."""

    plain: Tensor
    view: Tensor


@dataclass(frozen=True, kw_only=True)
class SelfLabelling(Stage):
    """Confident images label their views."""

    confidence: float
    name: str = "self-labelling"
    trained: Parts = TRAINED
    shared: Parts = TRAINED
    sees: Sights = (PLAIN, VIEW)

    def represent(self, net: Network, plain: Tensor, view: Tensor) -> Labelled:
        """Assign the image, without gradient, and its view."""
        (target,) = without_gradient(lambda: (net.online.assign(net.online.encoder(plain)),))
        return Labelled(target, net.online.assign(net.online.encoder(view)))

    def loss(self, outputs: Labelled) -> Tensor:
        """Cross-entropy of the confident images, with equal weight of all their clusters; 0 if none is."""
        best = outputs.plain.max(dim=1)
        sure = (best.values > self.confidence).to(outputs.view.dtype)
        sizes = torch.zeros_like(outputs.view[0]).index_add(0, best.indices, sure)
        weights = sure / sizes.clamp_min(1)[best.indices]
        losses = -outputs.view.gather(1, best.indices[:, None])[:, 0].clamp_min(1e-8).log()
        return (weights * losses).sum() / weights.sum().clamp_min(1e-8)
