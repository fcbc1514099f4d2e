"""DAC: deep adaptive clustering (Chang et al., ICCV 2017).

Targets are computed for each batch with batch statistics. Targets of a whole epoch in eval mode collapse: in
the first epochs running statistics lag behind, and all images seem to be similar.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.inputs import PLAIN, VIEW, Overview, Sights
from fedmcc.networks.heads import Norm, normalised_head
from fedmcc.networks.momentum import Branch, Network
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State

EPSILON = 1e-6  # similarities stay this far from 0 and 1
MEETING = 0.5  # both thresholds at the end


@dataclass(frozen=True)
class DAC:
    """Deep adaptive clustering: pairs of images that are surely alike or unlike train the others."""

    about: ClassVar[About] = About(
        "centralized deep clustering", "Chang et al., ICCV", 2017, "batch normalisation", cost=0.45
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    upper: float = 0.95  # similarity above which a pair is alike, at first
    lower: float = 0.455  # similarity below which a pair is unlike, at first
    norm: Norm = "batch"  # normalisation of the head; "batch" keeps every cluster in use

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= MEETING <= self.upper <= 1:
            limits = f"method.lower is {self.lower} and method.upper is {self.upper}"
            raise InputError(f"{limits}: give numbers from 0 to {MEETING} and from {MEETING} to 1.")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """An encoder with a normalised head of two layers."""
        return Network(
            Branch(encoder, cluster_projector=normalised_head(features, clusters, clusters, self.norm))
        )

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and head."""
        return (Selection(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """Unit label features of the view and of the image, and both thresholds in every row."""

    view: Tensor
    plain: Tensor
    upper: Tensor
    lower: Tensor


@dataclass(frozen=True, kw_only=True)
class Selection(Stage):
    """Train the similarity of views of the pairs that the images themselves decide."""

    method: DAC
    name: str = "selection"
    trained: Parts = ("online",)
    shared: Parts = ("online",)
    sees: Sights = (PLAIN, VIEW)

    def first_notes(self, net: Network, count: int) -> State:
        """The first thresholds."""
        return {"upper": torch.tensor(self.method.upper), "lower": torch.tensor(self.method.lower)}

    def prepare(self, net: Network, overview: Overview) -> None:
        """Move both thresholds towards each other, so that in the end every pair counts."""
        for name, value in self.first_notes(net, 0).items():
            net.notes[name] = torch.lerp(value, torch.tensor(MEETING), overview.passed).to(net.notes[name])

    def represent(self, net: Network, plain: Tensor, view: Tensor) -> Outputs:
        """Label features of images, without gradient, and of views."""
        (target,) = without_gradient(lambda: (_label_features(net, plain),))
        upper, lower = (net.notes[name].to(target.dtype).expand(len(view)) for name in ("upper", "lower"))
        return Outputs(_label_features(net, view), target, upper, lower)

    def loss(self, outputs: Outputs) -> Tensor:
        """Binary cross-entropy of the decided pairs."""
        return pair_loss(outputs.view, outputs.plain, outputs.upper[0], outputs.lower[0])


def pair_loss(view: Tensor, plain: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Mean cross-entropy of the pairs whose target similarity is at least `upper` or below `lower`."""
    target = plain @ plain.T
    alike, decided = (target >= upper).to(view.dtype), ((target >= upper) | (target < lower)).to(view.dtype)
    similarity = (view @ view.T).clamp(EPSILON, 1 - EPSILON)
    losses = F.binary_cross_entropy(similarity, alike, reduction="none")
    return (decided * losses).sum() / decided.sum().clamp_min(1)


def _label_features(net: Network, images: Tensor) -> Tensor:
    return F.normalize(net.online.assign(net.online.encoder(images)), dim=1)
