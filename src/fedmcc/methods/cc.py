"""CC: contrastive clustering (Li et al., AAAI 2021), which MCC extends by a momentum network."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from fedmcc.losses import cluster_balance, contrast, nt_xent
from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.heads import cluster_projector, instance_projector
from fedmcc.networks.momentum import Branch, Network


@dataclass(frozen=True)
class CC:
    """Contrastive clustering (Li et al. 2021): instance and cluster contrast with one network, as published.

    The paper prints `anchors = "a"`, `positive_in_denominator = false` and `contrast_weight = 0.5` (D1).
    """

    about: ClassVar[About] = About("centralized deep clustering", "Li et al., AAAI", 2021, cost=0.75)

    rounds: int = 100  # R; with one client, a round is an epoch
    epochs: int = 1  # E
    instance_temperature: float = 0.5  # tau_I
    cluster_temperature: float = 1.0  # tau_C
    contrast_weight: float = 1.0  # weight of both contrastive losses
    entropy_weight: float = 1.0  # weight of the entropies, which are maximised (D2)
    anchors: Literal["both", "a"] = "both"  # views whose rows are anchors (D1)
    positive_in_denominator: bool = True  # D1
    projections: int = 128  # d_1
    hidden: int | None = None  # width of the projectors; None: the number of features
    unlabelled: bool = True  # cluster images without a label too; false: they train instances alone (D16)

    def __post_init__(self) -> None:
        require_positive(self, "instance_temperature", "cluster_temperature", "projections", "hidden")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """One branch: encoder f, instance projector g_I, cluster projector g_C."""
        return Network(branch(encoder, features, self.hidden, self.projections, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains instances and clusters together."""
        stage = Joint(rounds=self.rounds, epochs=self.epochs, method=self)
        if self.unlabelled:
            return (stage,)
        second = Instances(rounds=self.rounds, epochs=self.epochs, method=self)
        return (replace(stage, on_unlabelled=second),)

    def compare(self, u: Tensor, v: Tensor, temperature: float) -> Tensor:
        """The contrast of the rows of both views."""
        loss = nt_xent if self.anchors == "both" else contrast
        return loss(u, v, temperature, self.positive_in_denominator)


def branch(encoder: nn.Module, features: int, hidden: int | None, projections: int, clusters: int) -> Branch:
    """An encoder with CC's two projectors, each of two layers without normalisation."""
    hidden = hidden or features
    return Branch(
        encoder,
        instance_projector(features, hidden, projections),
        cluster_projector(features, hidden, clusters),
    )


class Outputs(NamedTuple):
    """The paper's z and y for both views, one row per image."""

    z_a: Tensor
    z_b: Tensor
    y_a: Tensor
    y_b: Tensor


@dataclass(frozen=True, kw_only=True)
class Joint(Stage):
    """Joint training with L_CC."""

    method: CC
    name: str = "joint"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: Network, a: Tensor, b: Tensor) -> Outputs:
        """Pass the views through the network separately, so that BatchNorm statistics are per view."""
        z_a, y_a = net.online.project(a)
        z_b, y_b = net.online.project(b)
        return Outputs(z_a, z_b, y_a, y_b)

    def loss(self, outputs: Outputs) -> Tensor:
        """L_CC with the entropies maximised (D2); the columns of y represent the clusters."""
        z_a, z_b, y_a, y_b = outputs
        method = self.method
        instance = method.compare(z_a, z_b, method.instance_temperature)
        cluster = method.compare(y_a.T, y_b.T, method.cluster_temperature)
        balance = cluster_balance(y_a) + cluster_balance(y_b)
        return method.contrast_weight * (instance + cluster) - method.entropy_weight * balance


@dataclass(frozen=True, kw_only=True)
class Instances(Stage):
    """The instance contrast alone, on images without a label after each epoch (D16)."""

    method: CC
    name: str = "instances"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: Network, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """z for both views."""
        online = net.online
        return online.instance(online.encoder(a)), online.instance(online.encoder(b))

    def loss(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """The first term of L_CC."""
        method = self.method
        return method.contrast_weight * method.compare(*outputs, method.instance_temperature)
