"""Training on the clusters of confident images, the last stage of SCAN (Van Gansbeke et al., ECCV 2020)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.inputs import PLAIN, VIEW, Sights
from fedmcc.networks.momentum import Network
from fedmcc.networks.replay import without_gradient


class Labelled(NamedTuple):
    """The soft assignment of the image, without gradient, and of its view."""

    plain: Tensor
    view: Tensor


@dataclass(frozen=True, kw_only=True)
class SelfLabelling(Stage):
    """Confident images label their views."""

    confidence: float
    name: str = "self-labelling"
    trained: Parts = ("online.encoder", HEAD)
    shared: Parts = ("online.encoder", HEAD)
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
