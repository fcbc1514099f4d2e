"""FedMoCo: federated averaging of MoCo (He et al., CVPR 2020), with a queue of negatives per client."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import copy_into


class MomentumQueue(MomentumPair):
    """A momentum pair with a ring buffer of keys, filled with random unit vectors at first."""

    queue: Tensor
    position: Tensor  # of the oldest key

    def __init__(self, online: Branch, size: int, projections: int) -> None:
        super().__init__(online)
        drawn = torch.randn(size, projections, generator=generator(0, "queue"))
        self.register_buffer("queue", F.normalize(drawn, dim=1))
        self.register_buffer("position", torch.tensor(0))

    @torch.no_grad()
    def enqueue(self, keys: Float[Tensor, "n d"]) -> None:
        """Replace the oldest keys; the queue size need not be a multiple of the batch size."""
        places = (self.position + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        latest = slice(-len(self.queue), None)  # if there are more keys than the queue holds, keep the last
        self.queue[places[latest]] = keys[latest].to(self.queue.dtype)
        self.position.copy_((self.position + len(keys)) % len(self.queue))


@dataclass(frozen=True)
class FedMoCo:
    """MoCo with federated averaging: negatives from a queue of earlier images that each client keeps."""

    about: ClassVar[About] = About(
        "federated representation", "He et al., CVPR", 2020, features_only=True, cost=0.76
    )

    rounds: int = 100  # R
    epochs: int = 5  # E
    temperature: float = 0.2  # T
    momentum: float = 0.99  # m
    queue: int = 4096  # number of keys
    hidden: int = 4096  # width of the projector
    projections: int = 128
    norm: Norm = "batch"  # normalisation of the projector

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "queue", "hidden", "projections")
        require_fraction(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumQueue:
        """A query branch (f, g_I), a key branch as its target, and the queue of keys."""
        projector = normalised_mlp(features, self.hidden, self.projections, self.norm)
        return MomentumQueue(Branch(encoder, projector), self.queue, self.projections)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Representation(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """One row per image: s(q, k) / T, log sum exp s(q, queue) / T, and the key for the queue."""

    positive: Tensor
    negatives: Tensor
    key: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Contrast with view a as the query and view b as the key."""

    method: FedMoCo
    name: str = "representation"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: MomentumQueue, a: Tensor, b: Tensor) -> Outputs:
        """Compare the query with its key and with the queue."""
        return self.compare(net, a, b)[1]

    def compare(self, net: MomentumQueue, a: Tensor, b: Tensor) -> tuple[Tensor, Outputs]:
        """The query, and its comparison with its key, without gradient, and with the queue."""
        (key,) = without_gradient(lambda: (unit_projections(net.target, b),))
        query = unit_projections(net.online, a)
        positive = (query * key).sum(dim=1) / self.method.temperature
        negatives = (query @ net.queue.T / self.method.temperature).logsumexp(dim=1)
        return query, Outputs(positive, negatives, key)

    def loss(self, outputs: Outputs) -> Tensor:
        """InfoNCE: cross-entropy of identifying the key among the key and the queue."""
        return (torch.logaddexp(outputs.positive, outputs.negatives) - outputs.positive).mean()

    def after_step(self, net: MomentumQueue, outputs: Outputs) -> None:
        """Update the key network by the moving average and enqueue the keys."""
        net.update(self.method.momentum)
        net.enqueue(outputs.key)

    def receive(self, net: MomentumQueue, task: Task, memory: Memory) -> None:
        """Set both networks to the global model; the queue is kept."""
        adopt(net, task)


def unit_projections(branch: Branch, view: Tensor) -> Tensor:
    """The projections of a view, scaled to length 1."""
    return F.normalize(branch.instance(branch.encoder(view)), dim=1)


def adopt(net: MomentumPair, task: Task) -> None:
    """Set the online branch and the target to the global model."""
    copy_into(net, task.weights)
    net.reset_target()
