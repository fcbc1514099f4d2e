"""FedMCC's Algorithm 1, the default method: instance contrast with a momentum target, averaged every round.

It learns features. `clustering = "informative"`, the default, or the paper's second stage, `"mcc"`, follows.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.momentum_target import Target, receive_pair
from fedmcc.networks.heads import PROJECTIONS, instance_projector
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.networks.replay import without_gradient


@dataclass(frozen=True)
class FedMCC:
    """Federated momentum contrast of images (Algorithm 1); a clustering follows."""

    about: ClassVar[About] = About(
        "this paper", "Miao and Koyuncu, ACM TIST", 2024, features_only=True, cost=0.97
    )

    rounds: int = 100  # R
    epochs: int = 1  # E; the paper has 5
    temperature: float = 0.5  # tau_I
    momentum: float = 0.99  # m
    anchor: Anchor = "online"  # of the second term (D6); "paper": as printed
    positive_in_denominator: bool = False  # D1
    target: Target = "keep"  # the target network at the start of a round (D10)
    hidden: int | None = None  # width of the projector; None: the number of features

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "hidden")
        require_fraction(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches (f, g_I): the online branch, and the target as its copy."""
        projector = instance_projector(features, self.hidden or features, PROJECTIONS)
        return MomentumPair(Branch(encoder, projector))

    def stages(self) -> tuple[Stage, ...]:
        """One stage, which trains the encoder."""
        parts = ("encoder", "instance_projector")
        branches = ("online", "target") if self.target == "share" else ("online",)
        shared = tuple(f"{branch}.{part}" for branch in branches for part in parts)
        return (Representation(rounds=self.rounds, epochs=self.epochs, shared=shared, method=self),)


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Train the encoder and the instance projector with L_I."""

    method: FedMCC
    name: str = "representation"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Quartet:
        """Pass both views through both networks; the target goes first because it keeps no activations."""
        online, target = net.online, net.target
        targets = without_gradient(lambda: tuple(target.instance(target.encoder(view)) for view in (a, b)))
        z_a, z_b = online.instance(online.encoder(a)), online.instance(online.encoder(b))
        return Quartet(z_a, z_b, *targets)

    def loss(self, outputs: Quartet) -> Tensor:
        """L_I."""
        method = self.method
        return momentum_contrast(outputs, method.temperature, method.anchor, method.positive_in_denominator)

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(self.method.momentum)

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """Adopt the global model; the target network follows the option `target` (D10)."""
        receive_pair(net, task, memory, self.method.target)
