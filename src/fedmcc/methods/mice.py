"""MiCE: mixture of contrastive experts (Tsai, Li and Zhu, ICLR 2021).

The published bound with the exact posterior has the value and the gradient of the log-sum that is used here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.fedmoco import MomentumQueue, adopt
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import VIEW, Overview, Sights
from fedmcc.networks.heads import Gate
from fedmcc.networks.momentum import Branch
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State

MIN_PROBABILITY = 1e-30  # of an expert, for a finite logarithm


class Experts(MomentumQueue):
    """A momentum pair whose instance projector and queue have a unit vector for each expert."""

    def __init__(self, online: Branch, vectors: nn.Linear, size: int) -> None:
        super().__init__(online, size, vectors.weight.numel())
        self.vectors = vectors  # mu, a row for each expert
        self.queue = self.by_expert(self.queue).flatten(1)

    def by_expert(self, projections: Float[Tensor, "n kd"]) -> Float[Tensor, "n k d"]:
        """Divide projections among the experts, and scale each part to length 1."""
        return F.normalize(projections.view(-1, *self.vectors.weight.shape), dim=2)


@dataclass(frozen=True)
class MiCE:
    """Mixture of contrastive experts: one expert for each cluster finds the other view of its images."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Tsai, Li and Zhu, ICLR",
        2021,
        "a queue of a vector per cluster and image",
        cost=0.89,
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    temperature: float = 1.0  # tau
    gate_temperature: float = 1.0  # kappa
    momentum: float = 0.99  # m
    queue: int = 1024  # number of images whose projections are negatives
    projections: int = 64  # d, of each expert

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "gate_temperature", "queue", "projections")
        require_fraction(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Experts:
        """An encoder with linear experts and a gate, its target, the experts' prototypes and a queue."""
        gate = Gate(features, clusters, self.projections, self.gate_temperature)
        branch = Branch(encoder, nn.Linear(features, clusters * self.projections), gate)
        return Experts(branch, nn.Linear(self.projections, clusters, bias=False), self.queue)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder, experts and gate."""
        return (Mixture(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """For each image and expert: log pi, log Phi, and the target's unit projection."""

    gate: Tensor
    expert: Tensor
    key: Tensor


@dataclass(frozen=True, kw_only=True)
class Mixture(Stage):
    """Find the other view of an image in the queue with the expert that the gate chooses.

    Prototypes are trained, and before each epoch become the mean of the images that their expert won. With
    several clients these are the images of the client; the server averages what is trained from there.
    """

    method: MiCE
    name: str = "mixture"
    trained: Parts = ("online", "vectors")
    shared: Parts = ("online", "vectors")
    sees: Sights = (VIEW, VIEW, VIEW)

    def first_notes(self, net: Experts, count: int) -> State:
        """No sums of projections."""
        return {"sums": torch.zeros(net.vectors.weight.shape)}

    def prepare(self, net: Experts, overview: Overview) -> None:
        """Set the prototypes from the sums of the last epoch; an expert without images keeps its own."""
        sums = net.notes["sums"]
        won = sums.abs().sum(dim=1, keepdim=True) > 0
        net.vectors.weight.copy_(torch.where(won, F.normalize(sums, dim=1), net.vectors.weight))
        net.notes["sums"] = torch.zeros_like(sums)

    def represent(self, net: Experts, student: Tensor, teacher: Tensor, gate: Tensor) -> Outputs:
        """Compare the experts' projections of two views and the queue; the third view is for the gate."""
        (key,) = without_gradient(lambda: (_project(net, net.target, teacher),))
        query = _project(net, net.online, student) + F.normalize(net.vectors.weight, dim=1)
        query = query / self.method.temperature
        positive = (query * key).sum(dim=2)
        queue = net.queue.view(-1, *net.vectors.weight.shape)
        negatives = torch.einsum("nkd,qkd->nkq", query, queue).logsumexp(dim=2)
        chosen = net.online.assign(net.online.encoder(gate)).clamp_min(MIN_PROBABILITY).log()
        return Outputs(chosen, positive - torch.logaddexp(positive, negatives), key)

    def loss(self, outputs: Outputs) -> Tensor:
        """Minus the log-likelihood of the other view under the mixture."""
        return -(outputs.gate + outputs.expert).logsumexp(dim=1).mean()

    @torch.no_grad()
    def after_step(self, net: Experts, outputs: Outputs) -> None:
        """Update the target, the queue, and the sums of the images that each expert won."""
        best = (outputs.gate + outputs.expert).argmax(dim=1)
        own = outputs.key[torch.arange(len(best), device=best.device), best]
        net.notes["sums"].index_add_(0, best, own.to(net.notes["sums"].dtype))
        net.update(self.method.momentum)
        net.enqueue(outputs.key.flatten(1))

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Set both networks to the global model; the queue is kept."""
        adopt(net, task)


def _project(net: Experts, branch: Branch, images: Tensor) -> Tensor:
    return net.by_expert(branch.instance(branch.encoder(images)))
