"""FedSimCLR: federated averaging of SimCLR (Chen et al., ICML 2020)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from fedmcc.losses import nt_xent
from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, Network


@dataclass(frozen=True)
class FedSimCLR:
    """SimCLR with federated averaging: the other images of a batch are the negatives."""

    about: ClassVar[About] = About(
        "federated representation",
        "Chen et al., ICML",
        2020,
        needs="large batches",
        features_only=True,
        cost=0.72,
    )

    rounds: int = 100  # R
    epochs: int = 5  # E
    temperature: float = 0.07  # tau
    hidden: int = 4096  # width of the projector
    projections: int = 2048
    norm: Norm = "batch"  # normalisation of the projector

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "hidden", "projections")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """One branch (f, g_I)."""
        return Network(Branch(encoder, normalised_mlp(features, self.hidden, self.projections, self.norm)))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Representation(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """z for both views, one row per image."""

    z_a: Tensor
    z_b: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """NT-Xent over all 2n views."""

    method: FedSimCLR
    name: str = "representation"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: Network, a: Tensor, b: Tensor) -> Outputs:
        """Pass both views through the network separately."""
        online = net.online
        return Outputs(online.instance(online.encoder(a)), online.instance(online.encoder(b)))

    def loss(self, outputs: Outputs) -> Tensor:
        """NT-Xent with the positive in the denominator."""
        return nt_xent(outputs.z_a, outputs.z_b, self.method.temperature)
