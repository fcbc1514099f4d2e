"""MCC: momentum contrastive clustering, both views through an online and a slowly moving target network.

With several clients it is the paper's one-stage ablation: L_I and L_C together.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, cluster_balance, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.base import Memory, Parts, Stage, refuse_unless_positive, refuse_unless_share
from fedmcc.methods.cc import branch
from fedmcc.networks.momentum import MomentumPair
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import copy_into

Target = Literal["keep", "reset", "share"]


@dataclass(frozen=True)
class MCC:
    """Momentum contrastive clustering: contrast between an online network and its moving average."""

    rounds: int = 100  # R; an epoch each when training alone
    epochs: int = 1  # E
    instance_temperature: float = 0.5  # tau_I
    cluster_temperature: float = 1.0  # tau_C
    momentum: float = 0.99  # m
    entropy_weight: float = 1.0  # of the online entropies, which are maximised (D2, D7)
    anchor: Anchor = "paper"  # of the second term: the target's view a, or online b (D6)
    positive_in_denominator: bool = False  # D1
    target: Target = "keep"  # the target network from round to round (D10)
    projections: int = 128  # d_1
    hidden: int | None = None  # width of the projectors; None: as wide as the features

    def __post_init__(self) -> None:
        refuse_unless_positive(self, "instance_temperature", "cluster_temperature", "projections", "hidden")
        refuse_unless_share(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches (f, g_I, g_C): online, and the target that starts as its copy."""
        return MomentumPair(branch(encoder, features, self.hidden, self.projections, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """A single stage, instances and clusters together."""
        shared = ("online", "target") if self.target == "share" else ("online",)
        return (Joint(rounds=self.rounds, epochs=self.epochs, shared=shared, method=self),)


class Outputs(NamedTuple):
    """z and y of the paper for both views and both networks, a row per image."""

    z_a: Tensor
    z_b: Tensor
    z_a_target: Tensor
    z_b_target: Tensor
    y_a: Tensor
    y_b: Tensor
    y_a_target: Tensor
    y_b_target: Tensor


@dataclass(frozen=True, kw_only=True)
class Joint(Stage):
    """L_MCC."""

    method: MCC
    name: str = "joint"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Outputs:
        """Both views through both networks, four passes; no gradient reaches the target."""
        z_a_target, y_a_target, z_b_target, y_b_target = without_gradient(
            lambda: (*net.target.project(a), *net.target.project(b))
        )
        z_a, y_a = net.online.project(a)
        z_b, y_b = net.online.project(b)
        return Outputs(z_a, z_b, z_a_target, z_b_target, y_a, y_b, y_a_target, y_b_target)

    def loss(self, outputs: Outputs) -> Tensor:
        """L_MCC: the columns of y are the clusters' representations."""
        instances = Quartet(*outputs[:4])
        clusters = Quartet(*(y.T for y in outputs[4:]))
        balance = cluster_balance(outputs.y_a) + cluster_balance(outputs.y_b)
        method = self.method
        form = (method.anchor, method.positive_in_denominator)
        return (
            momentum_contrast(instances, method.instance_temperature, *form)
            + momentum_contrast(clusters, method.cluster_temperature, *form)
            - method.entropy_weight * balance
        )

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """The target follows: P(target) <- m P(target) + (1 - m) P(online)."""
        net.update(self.method.momentum)

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """The online network is replaced; the target starts as its copy and stays at home (D10)."""
        receive_pair(net, task, memory, self.method.target)


def receive_pair(net: MomentumPair, task: Task, memory: Memory, target: Target) -> None:
    """Adopt the global model; the target keeps, resets to it, or came with it."""
    copy_into(net, task.weights)
    first = "met" not in memory
    if target == "reset" or (target == "keep" and first):
        net.reset_target()
    memory["met"] = torch.tensor(True)
