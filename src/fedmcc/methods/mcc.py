"""MCC: momentum contrastive clustering with an online network and a moving-average target network.

With several clients it is the paper's one-stage ablation, which trains with L_I and L_C together.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, cluster_balance, cosine_distance, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.cc import branch
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.momentum_target import Target, receive_pair
from fedmcc.networks.heads import PROJECTIONS, normalised_mlp
from fedmcc.networks.momentum import MomentumPair, PredictorPair
from fedmcc.networks.replay import without_gradient


@dataclass(frozen=True)
class MCC:
    """Momentum contrastive clustering: contrast between an online network and its moving average."""

    about: ClassVar[About] = About("this paper", "Miao and Koyuncu, ACM TIST", 2024)

    rounds: int = 100  # R; with one client, a round is an epoch
    epochs: int = 1  # E
    instance_temperature: float = 0.5  # tau_I
    cluster_temperature: float = 1.0  # tau_C
    momentum: float = 0.99  # m
    entropy_weight: float = 1.0  # weight of the online entropies, which are maximised (D2, D7)
    anchor: Anchor = "paper"  # of the second term: "paper": target view a; "online": online view b (D6)
    positive_in_denominator: bool = False  # D1
    target: Target = "keep"  # the target network at the start of a round (D10)
    projections: int = PROJECTIONS
    hidden: int | None = None  # width of the projectors; None: the number of features
    loss: Literal["contrast", "mse"] = "contrast"  # "mse": squared distances of unit vectors, as in BYOL
    predictor: bool = False  # of the target's projections; with loss = "mse", BYOL with a cluster head
    unlabelled: bool = True  # cluster images without a label too; false: they train instances alone (D16)

    def __post_init__(self) -> None:
        require_positive(self, "instance_temperature", "cluster_temperature", "projections", "hidden")
        require_fraction(self, "momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches (f, g_I, g_C), and a predictor on the online branch if the option is set."""
        online = branch(encoder, features, self.hidden, self.projections, clusters)
        if not self.predictor:
            return MomentumPair(online)
        width = self.hidden or features
        return PredictorPair(online, normalised_mlp(self.projections, width, self.projections, "batch"))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains instances and clusters together."""
        trained = ("online", "predictor") if self.predictor else ("online",)
        shared = (*trained, "target") if self.target == "share" else trained
        stage = Joint(rounds=self.rounds, epochs=self.epochs, trained=trained, shared=shared, method=self)
        if self.unlabelled:
            return (stage,)
        second = Instances(rounds=self.rounds, epochs=self.epochs, method=self)
        return (replace(stage, on_unlabelled=second),)

    def compare(self, u: Quartet, temperature: float) -> Tensor:
        """The momentum contrast, or the mean squared distance of unit vectors over both pairs of views."""
        if self.loss == "mse":
            return (cosine_distance(u.a, u.b_target) + cosine_distance(u.b, u.a_target)) / 2
        return momentum_contrast(u, temperature, self.anchor, self.positive_in_denominator)


class Outputs(NamedTuple):
    """The paper's z and y for both views and both networks, one row per image."""

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
    """Joint training with L_MCC."""

    method: MCC
    name: str = "joint"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Outputs:
        """Pass both views through both networks, without gradient for the target."""
        z_a_target, y_a_target, z_b_target, y_b_target = without_gradient(
            lambda: (*net.target.project(a), *net.target.project(b))
        )
        z_a, y_a = net.online.project(a)
        z_b, y_b = net.online.project(b)
        if isinstance(net, PredictorPair):
            z_a, z_b = net.predictor(z_a), net.predictor(z_b)
        return Outputs(z_a, z_b, z_a_target, z_b_target, y_a, y_b, y_a_target, y_b_target)

    def loss(self, outputs: Outputs) -> Tensor:
        """L_MCC, or its form with squared distances; the columns of y represent the clusters."""
        instances = Quartet(*outputs[:4])
        clusters = Quartet(*(y.T for y in outputs[4:]))
        balance = cluster_balance(outputs.y_a) + cluster_balance(outputs.y_b)
        method = self.method
        return (
            method.compare(instances, method.instance_temperature)
            + method.compare(clusters, method.cluster_temperature)
            - method.entropy_weight * balance
        )

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """Update the target: P(target) <- m P(target) + (1 - m) P(online)."""
        net.update(self.method.momentum)

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """Adopt the global model; the target network follows the option `target` (D10)."""
        receive_pair(net, task, memory, self.method.target)


@dataclass(frozen=True, kw_only=True)
class Instances(Stage):
    """L_I alone, on images without a label after each epoch (D16)."""

    method: MCC
    name: str = "instances"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Quartet:
        """z for both views and both networks, without gradient for the target."""
        online, target = net.online, net.target
        targets = without_gradient(lambda: tuple(target.instance(target.encoder(view)) for view in (a, b)))
        z = [online.instance(online.encoder(view)) for view in (a, b)]
        if isinstance(net, PredictorPair):
            z = [net.predictor(each) for each in z]
        return Quartet(*z, *targets)

    def loss(self, outputs: Quartet) -> Tensor:
        """The first term of L_MCC."""
        return self.method.compare(outputs, self.method.instance_temperature)

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(self.method.momentum)
