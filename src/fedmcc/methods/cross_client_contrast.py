"""Contrast with the images of all clients, of which a client knows no more than their second moment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.losses import spectral_contrast
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage, unlike
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.numerics.state_dicts import State, copy_into


class SeparatedPair(MomentumPair):
    """A pair that knows the second moment of the other clients' projections, and its own."""

    own: Tensor  # mean of z zᵀ over this client's images, as it told the server last
    others: Tensor  # the same sum over all other clients' images, divided by the number of all images
    share: Tensor  # this client's part of all images

    def __init__(self, online: Branch, projections: int) -> None:
        super().__init__(online)
        self.register_buffer("own", torch.zeros(projections, projections))
        self.register_buffer("others", torch.zeros(projections, projections), persistent=False)
        self.register_buffer("share", torch.ones(()), persistent=False)


class Outputs(NamedTuple):
    """Projections of both views on the unit sphere; how near each is to other clients' images; the share."""

    z_a: Tensor
    z_b: Tensor
    others_a: Tensor
    others_b: Tensor
    share: Tensor


@dataclass(frozen=True, kw_only=True)
class Separation(Stage):
    """Spectral contrast, whose negatives are all clients' images: they enter by z zᵀ, which adds up.

    Local contrast has nothing to say about the classes of different clients, so that they end up on top of
    one another. Here every client pushes its images away from everybody's, without seeing them.
    """

    projections: int
    repulsion: float
    name: str = "separation"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: SeparatedPair, a: Tensor, b: Tensor) -> Outputs:
        """Both views through the online network."""
        z_a, z_b = (_project(net, view) for view in (a, b))
        others_a, others_b = (((z @ net.others) * z).sum(dim=1) for z in (z_a, z_b))
        return Outputs(z_a, z_b, others_a, others_b, net.share.expand(len(z_a)))

    def loss(self, outputs: Outputs) -> Tensor:
        """Attraction of the two views, repulsion of this client's images and of all others."""
        own = spectral_contrast(outputs.z_a, outputs.z_b, self.repulsion * outputs.share[0])
        return own + self.repulsion * (outputs.others_a + outputs.others_b).mean()

    def receive(self, net: SeparatedPair, task: Task, memory: Memory) -> None:
        """The others' moment is all clients' without one's own, if that is in it; at first there is none."""
        copy_into(net, task.weights)
        net.others.zero_()
        net.share.fill_(1)
        if task.extras:
            mine, everyone = memory["samples"].double(), task.extras["samples"].double()
            total = everyone * task.extras["moment"].double()
            if memory.get("round") == task.round - 1:
                total -= mine * net.own.double().cpu()
            else:
                everyone = everyone + mine
            net.others.copy_(total / everyone)
            net.share.copy_(mine / everyone)
        memory["round"] = torch.tensor(task.round)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The second moment of this client's projections, a matrix whatever the number of images."""
        net.eval()
        total, count = torch.zeros(net.own.shape, dtype=torch.float64), 0
        for batch in batches:
            z = _project(net, batch).cpu().double()  # not every device has doubles
            total, count = total + z.T @ z, count + len(z)
        net.own.copy_(total / count)
        return {"moment": net.own}

    def extras_error(self, update: Update) -> str:
        """A moment of unit vectors."""
        if wrong := unlike(update.extras, {"moment": (torch.float32, (self.projections,) * 2)}):
            return wrong
        moment = update.extras["moment"]
        if moment.trace() > 1.01 or (moment.abs() > 1.01).any():
            return "Its second moment is not that of vectors of length 1."
        return ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The average; the mean moment goes out with the next tasks."""
        counts = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        moments = torch.stack([update.extras["moment"] for update in updates]).double()
        mean = torch.einsum("k,kij->ij", counts / counts.sum(), moments).float()
        extras = {"moment": mean, "samples": counts.sum().long()}
        return Aggregate(super().combine(updates, model).weights, extras)


def _project(net: SeparatedPair, images: Tensor) -> Tensor:
    return F.normalize(net.online.instance(net.online.encoder(images)), dim=1, eps=1e-8)
