"""Contrast with the images of all clients, through the second moment of their projections only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.losses import spectral_contrast
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage
from fedmcc.methods.extras import Additive, additive_mismatch
from fedmcc.methods.other_clients import mean_over_images, part_of_others
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.numerics.matrices import is_positive_semidefinite
from fedmcc.numerics.state_dicts import State, copy_into


class CrossClientPair(MomentumPair):
    """A momentum pair with the second moments of this client's and the other clients' projections."""

    own: Tensor  # mean of z zᵀ over this client's images, as last sent to the server
    others: Tensor  # sum of z zᵀ over the other clients' images, divided by the number of all images
    share: Tensor  # this client's fraction of all images

    def __init__(self, online: Branch, projections: int) -> None:
        super().__init__(online)
        self.register_buffer("own", torch.zeros(projections, projections))
        self.register_buffer("others", torch.zeros(projections, projections), persistent=False)
        self.register_buffer("share", torch.ones(()), persistent=False)


class Outputs(NamedTuple):
    """Unit projections of both views, their mean squared similarity to other clients' images, the share."""

    z_a: Tensor
    z_b: Tensor
    others_a: Tensor
    others_b: Tensor
    share: Tensor


@dataclass(frozen=True, kw_only=True)
class CrossClientContrast(Stage):
    """Spectral contrast with the images of all clients as negatives, through their second moment z zᵀ.

    Local contrast does not separate classes that are held by different clients. Here each client also
    repels its images from those of the other clients, of which it receives only the sum of z zᵀ. With
    `emphasis`, they repel more strongly the less their moment resembles the client's own: they are then of
    other classes, while some of the client's own negatives are of the same class.
    """

    projections: int
    repulsion: float
    emphasis: float = 0.0  # additional weight of other clients' images if their moment is orthogonal
    name: str = "separation"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: CrossClientPair, a: Tensor, b: Tensor) -> Outputs:
        """Project both views with the online network."""
        z_a, z_b = (_project(net, view) for view in (a, b))
        others_a, others_b = (((z @ net.others) * z).sum(dim=1) for z in (z_a, z_b))
        return Outputs(z_a, z_b, others_a, others_b, net.share.expand(len(z_a)))

    def loss(self, outputs: Outputs) -> Tensor:
        """Attract the two views of an image; repel images of this client and of all others."""
        own = spectral_contrast(outputs.z_a, outputs.z_b, self.repulsion * outputs.share[0])
        return own + self.repulsion * (outputs.others_a + outputs.others_b).mean()

    def receive(self, net: CrossClientPair, task: Task, memory: Memory) -> None:
        """Compute the other clients' moment: the moment of all clients minus this client's part of it."""
        copy_into(net, task.weights)
        others, share = part_of_others(net.own, "moment", task, memory)
        net.others.copy_(others * (1 + self.emphasis * dissimilarity(net.own, others)))
        net.share.copy_(share)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The second moment of this client's projections, a matrix of fixed size."""
        net.eval()
        total, count = torch.zeros(net.own.shape, dtype=torch.float64), 0
        for batch in batches:
            z = _project(net, batch).cpu().double()  # not every device supports float64
            total, count = total + z.T @ z, count + len(z)
        net.own.copy_(total / count)
        return {"moment": net.own}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The moment, a mean over unit vectors."""
        shape = (self.projections, self.projections)
        return {"moment": Additive(torch.float32, shape, symmetric=True, norm=1.0)}

    def extras_error(self, update: Update) -> str:
        """Check that the moment can be that of unit vectors."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        moment = update.extras["moment"]
        valid = moment.trace() <= 1.01 and is_positive_semidefinite(moment, 1e-3)
        return "" if valid else "Its second moment is not that of unit vectors."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights; the mean moment is sent with the next tasks."""
        extras = mean_over_images(self, updates, "moment")
        return Aggregate(super().combine(updates, model).weights, extras)


def dissimilarity(first: Float[Tensor, "d d"], second: Float[Tensor, "d d"]) -> float:
    """One minus the cosine of two moments: 0 if they are proportional, or if one is empty."""
    lengths = float(first.norm()) * float(second.norm())
    return 1 - float((first.cpu().double() * second.cpu().double()).sum()) / lengths if lengths else 0.0


def _project(net: CrossClientPair, images: Tensor) -> Tensor:
    return F.normalize(net.online.instance(net.online.encoder(images)), dim=1, eps=1e-8)
