"""Algorithm 2: MCC's clustering stage on a frozen encoder, usable after any method that trains one."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, cluster_balance, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.base import (
    STARTED,
    Memory,
    Parts,
    Stage,
    require_fraction,
    require_positive,
    require_view_pairs,
)
from fedmcc.methods.mcc import Target
from fedmcc.networks.heads import cluster_projector
from fedmcc.networks.momentum import Branch, ema_update, set_cluster_projector
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import copy_into


@dataclass(frozen=True)
class ClusterContrast:
    """MCC's clustering stage: cluster contrast trains a new head on the frozen encoder (Algorithm 2)."""

    rounds: int = 10  # R
    epochs: int = 5  # E
    temperature: float = 1.0  # tau_C
    momentum: float = 0.99  # m
    entropy_weight: float = 1.0  # weight of the online entropies, which are maximised (D2, D7)
    anchor: Anchor = "online"  # D6; "paper": as printed
    positive_in_denominator: bool = False  # D1
    target: Target = "keep"  # the target head at the start of a round (D10)
    hidden: int | None = None  # width of the projector; None: the number of features
    views_per_image: int = 8  # views whose features are cached; 0: new views in every step
    unlabelled: bool = True  # use images without a label too (D16)

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "hidden", section="clustering")
        require_fraction(self, "momentum", section="clustering")
        require_view_pairs(self, section="clustering")

    def extend(self, net: Any, features: int, clusters: int) -> None:
        """Add an online cluster projector and its target to the network."""
        if not hasattr(net, "target"):
            net.target = Branch(nn.Identity())
        set_cluster_projector(net, cluster_projector(features, self.hidden or features, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """One stage."""
        head, target = "online.cluster_projector", "target.cluster_projector"
        shared = (head, target) if self.target == "share" else (head,)
        stage = Clustering(rounds=self.rounds, epochs=self.epochs, shared=shared, method=self)
        return (replace(stage, views_per_image=self.views_per_image, labelled_only=not self.unlabelled),)


@dataclass(frozen=True, kw_only=True)
class Clustering(Stage):
    """Train the cluster projector with L_C."""

    method: ClusterContrast
    name: str = "clustering"
    trained: Parts = ("online.cluster_projector",)
    shared: Parts = ("online.cluster_projector",)
    frozen: Parts = ("online.encoder",)
    encoder: str = "online.encoder"

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Quartet:
        """Both branches use the features of one frozen encoder (D13)."""
        online, target = net.online, net.target
        if not self.on_features:
            a, b = without_gradient(lambda: (online.encoder(a), online.encoder(b)))
        h = torch.cat((a, b))
        t_a, t_b = without_gradient(lambda: target.assign(h).chunk(2))
        y_a, y_b = online.assign(h).chunk(2)
        return Quartet(y_a, y_b, t_a, t_b)

    def loss(self, outputs: Quartet) -> Tensor:
        """L_C with the online entropies maximised (D2) and without those of the target (D7)."""
        method = self.method
        columns = Quartet(*(y.T for y in outputs))
        form = (method.anchor, method.positive_in_denominator)
        balance = cluster_balance(outputs.a) + cluster_balance(outputs.b)
        return momentum_contrast(columns, method.temperature, *form) - method.entropy_weight * balance

    def after_step(self, net: Any, outputs: object) -> None:
        """Update the target's cluster projector by the moving average."""
        ema_update(net.target.cluster_projector, net.online.cluster_projector, self.method.momentum)

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Adopt the global head; the target head starts as its copy and stays local (D10)."""
        copy_into(net, task.weights)
        first = STARTED not in memory
        if self.method.target == "reset" or (self.method.target == "keep" and first):
            net.target.cluster_projector.load_state_dict(net.online.cluster_projector.state_dict())
        memory[STARTED] = torch.tensor(True)
