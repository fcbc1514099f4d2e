"""FedBYOL: federated averaging of BYOL (Grill et al. 2020), a predictor with a moving-average target.

FedU and FedEMA differ from it only in `receive`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.losses import cosine_distance
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import STARTED, Memory, Parts, Stage
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, PredictorPair
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import (
    State,
    add_prefix,
    copy_into,
    detached,
    mean_distance,
    select,
    strip_prefix,
)

Divergence = Literal["global", "moved"]  # from the global encoder, or in the client's last training


@dataclass(frozen=True)
class FedBYOL:
    """BYOL with federated averaging: no negatives; each client keeps its own target network."""

    about: ClassVar[About] = About(
        "federated representation", "Grill et al., NeurIPS", 2020, features_only=True, cost=1.0
    )

    rounds: int = 100  # R
    epochs: int = 5  # E
    momentum: float = 0.99  # m
    hidden: int = 4096  # width of the projector and the predictor
    projections: int = 2048
    norm: Norm = "batch"  # normalisation of the projector and the predictor

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "projections")
        require_fraction(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> PredictorPair:
        """Two branches (f, g_I), and a predictor on the online branch."""
        projector = normalised_mlp(features, self.hidden, self.projections, self.norm)
        predictor = normalised_mlp(self.projections, self.hidden, self.projections, self.norm)
        return PredictorPair(Branch(encoder, projector), predictor)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Representation(rounds=self.rounds, epochs=self.epochs, method=self),)

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Adopt the global network and predictor; the target starts as a copy and stays local (D10)."""
        copy_into(net, task.weights)
        if STARTED not in memory:
            net.reset_target()
        memory[STARTED] = torch.tensor(True)


def kernels(state: Mapping[str, Tensor]) -> State:
    """Weights of the online encoder without biases and normalisation, on which divergence is measured."""
    encoder = select(state, ("online.encoder",))
    return {name: value for name, value in encoder.items() if value.dim() > 1}


def divergence(kind: Divergence, local: State, incoming: State, memory: Memory) -> float:
    """Distance of a client's encoder from the global one, or from where its last training started."""
    start = kernels(incoming) if kind == "global" else strip_prefix("received", memory)
    return mean_distance(kernels(local), start)


def store_start(kind: Divergence, weights: State, memory: Memory) -> None:
    """Store the encoder with which a training starts, if `divergence` needs it in the next round."""
    if kind == "moved":
        memory |= add_prefix("received", detached(kernels(weights)))


class Outputs(NamedTuple):
    """Predictions of the online network and projections of the target, one row per image."""

    p_a: Tensor
    p_b: Tensor
    z_a_target: Tensor
    z_b_target: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Train the prediction of each view to match the target's projection of the other view."""

    method: FedBYOL
    name: str = "representation"
    trained: Parts = ("online", "predictor")
    shared: Parts = ("online", "predictor")

    def represent(self, net: PredictorPair, a: Tensor, b: Tensor) -> Outputs:
        """Pass both views through both networks, without gradient for the target."""
        online, target = net.online, net.target
        targets = without_gradient(lambda: tuple(target.instance(target.encoder(view)) for view in (a, b)))
        p_a = net.predictor(online.instance(online.encoder(a)))
        p_b = net.predictor(online.instance(online.encoder(b)))
        return Outputs(p_a, p_b, *targets)

    def loss(self, outputs: Outputs) -> Tensor:
        """2 - 2 cos, summed over both pairings of the views."""
        p_a, p_b, z_a_target, z_b_target = outputs
        return cosine_distance(p_a, z_b_target) + cosine_distance(p_b, z_a_target)

    def after_step(self, net: PredictorPair, outputs: Outputs) -> None:
        """Update the target: P(target) <- m P(target) + (1 - m) P(online)."""
        net.update(self.method.momentum)

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Call `receive` of the method, in which FedBYOL, FedU and FedEMA differ."""
        self.method.receive(net, task, memory)
