"""FedMCC: the paper's two stages, first instances, then clusters on the frozen encoder."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.cluster_contrast import ClusterContrast, Marginal
from fedmcc.methods.hyperparameters import require_view_pairs
from fedmcc.methods.mcc import MomentumContrast, receive_pair
from fedmcc.networks.momentum import MomentumPair
from fedmcc.networks.replay import without_gradient


@dataclass(frozen=True)
class FedMCC(MomentumContrast):
    """Federated momentum contrastive clustering: Algorithm 1, then Algorithm 2 on the frozen encoder."""

    about: ClassVar[About] = About("this paper", "Miao and Koyuncu, ACM TIST", 2024, cost=0.61)

    rounds: int = 100  # R of Algorithm 1
    epochs: int = 5  # E
    anchor: Anchor = "online"  # D6; "paper": as printed
    clustering_rounds: int = 10  # R of Algorithm 2
    clustering_epochs: int = 5
    views_per_image: int = (
        ClusterContrast.views_per_image
    )  # views cached in Algorithm 2; 0: new in every step

    unlabelled: bool = True  # use images without a label in Algorithm 2 too (D16)
    marginal: Marginal = "client"  # "all": Algorithm 2 maximises the entropy of all clients' sizes (D21)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_view_pairs(self)

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches (f, g_I, g_C), and cluster sizes of all clients if the option uses them."""
        pair = super().build(encoder, features, clusters)
        self._clustering().add_sizes(pair, clusters)
        return pair

    def stages(self) -> tuple[Stage, ...]:
        """Representation, then clustering."""
        parts = ("encoder", "instance_projector")
        branches = ("online", "target") if self.target == "share" else ("online",)
        shared = tuple(f"{branch}.{part}" for branch in branches for part in parts)
        first = Representation(rounds=self.rounds, epochs=self.epochs, shared=shared, method=self)
        return (first, *self._clustering().stages())

    def _clustering(self) -> ClusterContrast:
        return ClusterContrast(
            rounds=self.clustering_rounds,
            epochs=self.clustering_epochs,
            temperature=self.cluster_temperature,
            momentum=self.momentum,
            entropy_weight=self.entropy_weight,
            anchor=self.anchor,
            positive_in_denominator=self.positive_in_denominator,
            target=self.target,
            hidden=self.hidden,
            views_per_image=self.views_per_image,
            unlabelled=self.unlabelled,
            marginal=self.marginal,
        )


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Algorithm 1: train the encoder and the instance projector with L_I."""

    method: MomentumContrast
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
        form = (method.anchor, method.positive_in_denominator)
        return momentum_contrast(outputs, method.instance_temperature, *form)

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(self.method.momentum)

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """Adopt the global model; the target network follows the option `target` (D10)."""
        receive_pair(net, task, memory, self.method.target)
