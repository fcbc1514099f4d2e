"""FedBYOL: federated averaging of BYOL (Grill et al. 2020), whose predictor meets a slowly moving target.

FedU and FedEMA are the same but for `receive`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.losses import cosine_distance
from fedmcc.messages import Task
from fedmcc.methods.base import Memory, Parts, Stage, refuse_unless_positive, refuse_unless_share
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, PredictorPair
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, copy_into, select


@dataclass(frozen=True)
class FedBYOL:
    """BYOL under federated averaging: no negatives, the target network stays at home."""

    rounds: int = 100  # R
    epochs: int = 5  # E
    momentum: float = 0.99  # m
    hidden: int = 4096  # width of projector and predictor
    projections: int = 2048
    norm: Norm = "batch"  # of projector and predictor

    def __post_init__(self) -> None:
        refuse_unless_positive(self, "hidden", "projections")
        refuse_unless_share(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> PredictorPair:
        """Two branches (f, g_I) and the predictor of the online one."""
        projector = normalised_mlp(features, self.hidden, self.projections, self.norm)
        predictor = normalised_mlp(self.projections, self.hidden, self.projections, self.norm)
        return PredictorPair(Branch(encoder, projector), predictor)

    def stages(self) -> tuple[Stage, ...]:
        """A single stage, which learns the representation."""
        return (Representation(rounds=self.rounds, epochs=self.epochs, method=self),)

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Online network and predictor are replaced; the target starts as a copy and stays (D10)."""
        copy_into(net, task.weights)
        if "met" not in memory:
            net.reset_target()
        memory["met"] = torch.tensor(True)


def kernels(state: Mapping[str, Tensor]) -> State:
    """The online encoder's convolutions, which divergence is measured on; norms and biases left out."""
    encoder = select(state, ("online.encoder",))
    return {name: value for name, value in encoder.items() if value.dim() > 1}


class Outputs(NamedTuple):
    """Predictions of the online network and projections of the target, a row per image."""

    p_a: Tensor
    p_b: Tensor
    z_a_target: Tensor
    z_b_target: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Each view's prediction approaches the target's projection of the other view."""

    method: FedBYOL
    name: str = "representation"
    trained: Parts = ("online", "predictor")
    shared: Parts = ("online", "predictor")

    def represent(self, net: PredictorPair, a: Tensor, b: Tensor) -> Outputs:
        """Both views through both networks; no gradient reaches the target."""
        online, target = net.online, net.target
        targets = without_gradient(lambda: tuple(target.instance(target.encoder(view)) for view in (a, b)))
        p_a = net.predictor(online.instance(online.encoder(a)))
        p_b = net.predictor(online.instance(online.encoder(b)))
        return Outputs(p_a, p_b, *targets)

    def loss(self, outputs: Outputs) -> Tensor:
        """2 - 2 cos, both ways."""
        p_a, p_b, z_a_target, z_b_target = outputs
        return cosine_distance(p_a, z_b_target) + cosine_distance(p_b, z_a_target)

    def after_step(self, net: PredictorPair, outputs: Outputs) -> None:
        """The target follows: P(target) <- m P(target) + (1 - m) P(online)."""
        net.update(self.method.momentum)

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """The hook in which the methods of this family differ."""
        self.method.receive(net, task, memory)
