"""FedMCC+: the paper's scheme made stronger where clients hold few classes each; the product's default.

Instance contrast with frequent averaging, then contrast with the images of *all* clients through their second
moment; clusters by federated spectral clustering instead of a head trained from nothing; encoder and
prototypes polished together, and the result kept only if it is no less certain. docs/decisions/0005 measures
each of these.
"""

from dataclasses import dataclass

from torch import nn

from fedmcc.errors import InputError
from fedmcc.losses import Anchor
from fedmcc.methods.base import Stage, refuse_unless_positive, refuse_unless_share
from fedmcc.methods.cross_client_contrast import Separation
from fedmcc.methods.federated_spectral import FederatedSpectral
from fedmcc.methods.fedmcc import Representation
from fedmcc.methods.mcc import MCC
from fedmcc.methods.self_training import Choice, KeepingPair, Polish
from fedmcc.networks.heads import instance_projector
from fedmcc.networks.momentum import Branch


@dataclass(frozen=True)
class FedMCCPlus(MCC):
    """FedMCC with contrast across clients, federated spectral clustering and a polish."""

    rounds: int = 100  # R of representation and separation together
    epochs: int = 1  # E
    anchor: Anchor = "online"
    separation: float = 0.5  # share of the rounds that contrast with all clients' images
    repulsion: float = 3.0  # weight of all other images in the separation stage
    axes: float = 3.0  # whitened axes per cluster; 0: features as they are
    prototypes: float = 10.0  # per cluster
    prototype_temperature: float = 0.05
    balance: float = 1.0  # weight of equal cluster sizes when prototypes are merged
    smallest: int = 1  # images that a centroid must stand for to leave its client
    polish_rounds: int = 0  # it changes little: docs/decisions/0005
    polish_pace: float = 0.2  # multiple of the learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_share(self, "separation")
        refuse_unless_positive(
            self, "repulsion", "polish_pace", "prototypes", "prototype_temperature", "smallest"
        )
        if self.target == "share":
            raise InputError('method.target = "share" is an ablation of fedmcc: use keep or reset here.')

    def build(self, encoder: nn.Module, features: int, clusters: int) -> KeepingPair:
        """Two branches with a head of prototypes each, and a place for what the polish starts from."""
        instance = instance_projector(features, self.hidden or features, self.projections)
        head = self._clustering().head(features, clusters)
        return KeepingPair(Branch(encoder, instance, head), self.projections)

    def stages(self) -> tuple[Stage, ...]:
        """Representation, separation, federated spectral clustering, polish."""
        epochs, apart = self.epochs, round(self.separation * self.rounds)
        stages: list[Stage] = []
        if apart < self.rounds or not apart:
            stages.append(Representation(rounds=self.rounds - apart, epochs=epochs, method=self))
        if apart:
            separation = Separation(
                rounds=apart, epochs=epochs, projections=self.projections, repulsion=self.repulsion
            )
            stages.append(separation)
        stages += self._clustering().stages()
        if self.polish_rounds:
            polish = Polish(
                rounds=self.polish_rounds,
                epochs=epochs,
                pace=self.polish_pace,
                momentum=self.momentum,
                entropy_weight=self.entropy_weight,
            )
            stages += [polish, Choice()]
        return tuple(stages)

    def _clustering(self) -> FederatedSpectral:
        return FederatedSpectral(
            axes=self.axes,
            prototypes=self.prototypes,
            temperature=self.prototype_temperature,
            balance=self.balance,
            smallest=self.smallest,
        )
