"""DCCM: deep comprehensive correlation mining (Wu et al., ICCV 2019).

Targets are computed for each batch with batch statistics, as in DAC. Pairs for the information between maps
and features are drawn before each epoch.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.dac import EPSILON, pair_loss
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import PARTNER, PARTNERS, PLAIN, VIEW, Overview, Sights
from fedmcc.networks.critic import Critic, CriticNetwork, map_channels
from fedmcc.networks.heads import Norm, normalised_head
from fedmcc.networks.momentum import Branch, Network
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.neighbours import partners_by_label
from fedmcc.numerics.state_dicts import State

CANDIDATES = 8  # partners of each kind, among which one is drawn in a step
HIDDEN_LAYERS = 3  # of the head, up to its hidden features


@dataclass(frozen=True)
class DCCM:
    """Deep comprehensive correlation mining: pseudo-graph, pseudo-labels and information train one head."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Wu et al., ICCV",
        2019,
        "batch normalisation, an encoder with `maps`",
        cost=1.2,
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    similarity: float = 0.95  # of images that belong together
    confidence: float = 0.9  # of images that label themselves
    label_weight: float = 5.0
    information: float = 0.05  # weight of the information between maps and features; 0: without
    hidden: int = 64  # width of the head
    critic: int = 512  # width of the network that estimates the information
    norm: Norm = "batch"  # normalisation of the head; "batch" keeps every cluster in use

    def __post_init__(self) -> None:
        require_positive(self, "label_weight", "hidden", "critic")
        require_fraction(self, "similarity")
        require_fraction(self, "confidence")
        if self.information < 0:
            raise InputError(f"method.information is {self.information}: give 0 or more.")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """An encoder with a normalised head of two layers, and a critic unless `information` is 0."""
        head = normalised_head(features, self.hidden, clusters, self.norm)
        branch = Branch(encoder, cluster_projector=head)
        if not self.information:
            return Network(branch)
        return CriticNetwork(branch, Critic(map_channels(encoder), self.hidden, self.critic))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder, head and critic."""
        parts: Parts = ("online", "critic") if self.information else ("online",)
        sees: Sights = (PLAIN, VIEW, PARTNER, PARTNER) if self.information else (PLAIN, VIEW)
        stage = Correlation(
            rounds=self.rounds, epochs=self.epochs, method=self, trained=parts, shared=parts, sees=sees
        )
        return (stage,)


class Outputs(NamedTuple):
    """Soft assignments of view and image, and the critic's loss for each view."""

    view: Tensor
    plain: Tensor
    information: Tensor


@dataclass(frozen=True, kw_only=True)
class Correlation(Stage):
    """Images decide which views belong together and to which cluster; maps inform about features."""

    method: DCCM
    name: str = "correlation"

    def first_notes(self, net: Network, count: int) -> State:
        """Each image as its own partner."""
        own = torch.arange(count)[:, None, None].repeat(1, 2, 1)
        return {PARTNERS: own} if self.method.information else {}

    def prepare(self, net: Network, overview: Overview) -> None:
        """Draw partners of the same cluster and of other clusters for each image."""
        if self.method.information:
            y = overview.features(lambda batch: net.online.assign(net.online.encoder(batch)))
            net.notes[PARTNERS] = partners_by_label(y.argmax(dim=1).cpu(), CANDIDATES, overview.seed).to(
                y.device
            )

    def represent(self, net: Network, plain: Tensor, view: Tensor, *partners: Tensor) -> Outputs:
        """Assign the image, without gradient, and its view; compare maps with the view's features."""
        online, encoder = net.online, net.online.encoder
        (target,) = without_gradient(lambda: (online.assign(encoder(plain)),))
        if not partners:
            y = online.assign(encoder(view))
            return Outputs(y, target, torch.zeros_like(y[:, 0]))
        assert isinstance(net, CriticNetwork)
        assert isinstance(online.cluster_projector, nn.Sequential)
        maps = encoder.maps(view)  # type: ignore[operator]
        features = encoder.collapse(maps)  # type: ignore[operator]
        hidden = online.cluster_projector[:HIDDEN_LAYERS](features)
        same, other = (encoder.maps(partner) for partner in partners)  # type: ignore[operator]
        joint = F.softplus(-net.critic(maps, hidden)) + F.softplus(-net.critic(same, hidden))
        losses = joint / 2 + F.softplus(net.critic(other, hidden))
        return Outputs(online.cluster_projector[HIDDEN_LAYERS:](hidden), target, losses)

    def loss(self, outputs: Outputs) -> Tensor:
        """Pseudo-graph, pseudo-labels and information."""
        threshold = torch.tensor(self.method.similarity)
        view, plain = (F.normalize(y, dim=1) for y in (outputs.view, outputs.plain))
        graph = pair_loss(view, plain, threshold, threshold)  # equal thresholds: every pair counts
        labels = label_loss(outputs.view, outputs.plain, self.method.confidence)
        information = outputs.information.mean()
        return graph + self.method.label_weight * labels + self.method.information * information


def label_loss(view: Float[Tensor, "n k"], plain: Float[Tensor, "n k"], confidence: float) -> Tensor:
    """Binary cross-entropy of each unit against the cluster of the image, 0 for images that are not sure."""
    best = plain.max(dim=1)
    target = F.one_hot(best.indices, view.shape[1]).to(view.dtype)
    losses = F.binary_cross_entropy(view.clamp(EPSILON, 1 - EPSILON), target, reduction="none").mean(dim=1)
    return (losses * (best.values >= confidence)).mean()
