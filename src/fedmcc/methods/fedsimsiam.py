"""FedSimSiam: federated averaging of SimSiam (Chen and He, CVPR 2021)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from fedmcc.losses import cosine_distance
from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, PredictorNetwork


@dataclass(frozen=True)
class FedSimSiam:
    """SimSiam with federated averaging: a predictor and a stop-gradient, no target network, no negatives."""

    about: ClassVar[About] = About(
        "federated representation", "Chen and He, CVPR", 2021, features_only=True, cost=0.77
    )

    rounds: int = 100  # R
    epochs: int = 5  # E
    hidden: int = 4096  # width of the projector and the predictor
    projections: int = 2048
    norm: Norm = "batch"  # normalisation of the projector and the predictor

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "projections")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> PredictorNetwork:
        """One branch (f, g_I) and its predictor."""
        projector = normalised_mlp(features, self.hidden, self.projections, self.norm)
        predictor = normalised_mlp(self.projections, self.hidden, self.projections, self.norm)
        return PredictorNetwork(Branch(encoder, projector), predictor)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Representation(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """Predictions and projections of both views, one row per image."""

    p_a: Tensor
    p_b: Tensor
    z_a: Tensor
    z_b: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Train the prediction of each view to match the projection of the other view."""

    method: FedSimSiam
    name: str = "representation"
    trained: Parts = ("online", "predictor")
    shared: Parts = ("online", "predictor")

    def represent(self, net: PredictorNetwork, a: Tensor, b: Tensor) -> Outputs:
        """Pass both views through the branch and the predictor, without gradient for the projections."""
        z_a = net.online.instance(net.online.encoder(a))
        z_b = net.online.instance(net.online.encoder(b))
        return Outputs(net.predictor(z_a), net.predictor(z_b), z_a.detach(), z_b.detach())

    def loss(self, outputs: Outputs) -> Tensor:
        """-½ (cos(p_a, z_b) + cos(p_b, z_a)), computed from the distances 2 - 2 cos; the minimum is -1."""
        p_a, p_b, z_a, z_b = outputs
        return 0.25 * (cosine_distance(p_a, z_b) + cosine_distance(p_b, z_a)) - 1
