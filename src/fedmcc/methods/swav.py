"""SwAV: swapping assignments between views (Caron et al., NeurIPS 2020), with two views, without a queue."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.fedsimclr import FedSimCLR
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.momentum import Branch, Network


class PrototypeNetwork(Network):
    """A branch, and prototypes for its projections."""

    def __init__(self, online: Branch, prototypes: nn.Linear) -> None:
        super().__init__(online)
        self.prototypes = prototypes


@dataclass(frozen=True)
class SwAV(FedSimCLR):
    """Swapped assignments: the balanced code of a view is predicted from the other; for a clustering."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Caron et al., NeurIPS",
        2020,
        "a clustering, batches of twice the prototypes",
        cost=0.73,
    )

    epochs: int = 1  # E
    temperature: float = 0.1  # tau, of the predictions
    hidden: int = 512  # width of the projector
    projections: int = 128
    prototypes: int = 100  # about 10 per cluster, and at most half the batch size
    sharpness: float = 0.05  # epsilon, temperature of the codes
    iterations: int = 3  # of Sinkhorn and Knopp's algorithm

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "prototypes", "sharpness", "iterations")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> PrototypeNetwork:
        """SimCLR's branch with prototypes."""
        branch = super().build(encoder, features, clusters).online
        return PrototypeNetwork(branch, nn.Linear(self.projections, self.prototypes, bias=False))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Swapping(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """Cosines of both views with all prototypes."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, kw_only=True)
class Swapping(Stage):
    """The code of one view, balanced over the prototypes within a batch, is predicted from the other view."""

    method: SwAV
    name: str = "swapping"
    trained: Parts = ("online", "prototypes")
    shared: Parts = ("online", "prototypes")

    def represent(self, net: PrototypeNetwork, a: Tensor, b: Tensor) -> Outputs:
        """Compare both views with the prototypes."""
        return Outputs(_scores(net, a), _scores(net, b))

    def loss(self, outputs: Outputs) -> Tensor:
        """The mean cross-entropy of both directions; codes have no gradient."""
        method = self.method
        predicted = [(scores / method.temperature).log_softmax(dim=1) for scores in outputs]
        codes = [balanced_codes(scores.detach() / method.sharpness, method.iterations) for scores in outputs]
        return -(codes[1] * predicted[0] + codes[0] * predicted[1]).sum(dim=1).mean() / 2


def balanced_codes(logits: Float[Tensor, "n p"], iterations: int) -> Float[Tensor, "n p"]:
    """Scale columns and rows of exp(logits) to equal sums in turn, and rows to 1 in the end."""
    for _ in range(iterations):
        logits = logits.log_softmax(dim=0).log_softmax(dim=1)
    return logits.exp()


def _scores(net: PrototypeNetwork, view: Tensor) -> Tensor:
    z = F.normalize(net.online.instance(net.online.encoder(view)), dim=1)
    return z @ F.normalize(net.prototypes.weight, dim=1).T
