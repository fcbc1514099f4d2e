"""IDFD: instance discrimination and feature decorrelation (Tao, Takagi and Nakata, ICLR 2021)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import ROW, VIEW, Sights
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class IDFD:
    """Every image is a class of its own, and features are decorrelated; for a clustering such as lloyd."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Tao, Takagi and Nakata, ICLR",
        2021,
        "a clustering, a stored vector per image",
        cost=0.34,
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    temperature: float = 1.0  # tau; small ones spread images evenly and undo clusters
    feature_temperature: float = 2.0  # tau_2
    weight: float = 1.0  # alpha, of the decorrelation
    bank_momentum: float = 0.5  # share of the old entry when the bank is updated
    projections: int = 128  # d

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "feature_temperature", "weight", "projections")
        require_fraction(self, "bank_momentum")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """An encoder with a linear projector."""
        return Network(Branch(encoder, nn.Linear(features, self.projections)))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Discrimination(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """Of each image: unit projection z, z·b / tau, log sum exp z·b / tau over the bank, and its number."""

    z: Tensor
    own: Tensor
    all: Tensor
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class Discrimination(Stage):
    """Find each view's image in a bank of the client's images, and decorrelate the features of a batch."""

    method: IDFD
    name: str = "discrimination"
    trained: Parts = ("online",)
    shared: Parts = ("online",)
    sees: Sights = (VIEW, ROW)

    def first_notes(self, net: Network, count: int) -> State:
        """A bank of random unit vectors, one for each image."""
        drawn = torch.randn(count, self.method.projections, generator=generator(0, self.name))
        return {"bank": F.normalize(drawn, dim=1)}

    def represent(self, net: Network, view: Tensor, rows: Tensor) -> Outputs:
        """Project the views and compare them with the bank."""
        z = F.normalize(net.online.instance(net.online.encoder(view)), dim=1)
        bank = net.notes["bank"].to(z.dtype)
        own = (z * bank[rows]).sum(dim=1) / self.method.temperature
        return Outputs(z, own, (z @ bank.T / self.method.temperature).logsumexp(dim=1), rows)

    def loss(self, outputs: Outputs) -> Tensor:
        """Discrimination of images plus decorrelation of features."""
        discrimination = (outputs.all - outputs.own).mean()
        return discrimination + self.method.weight * decorrelation(outputs.z, self.method.feature_temperature)

    @torch.no_grad()
    def after_step(self, net: Network, outputs: Outputs) -> None:
        """Move the entries of the batch towards the new projections."""
        bank = net.notes["bank"]
        moved = torch.lerp(outputs.z.to(bank.dtype), bank[outputs.rows], self.method.bank_momentum)
        bank[outputs.rows] = F.normalize(moved, dim=1)


def decorrelation(z: Float[Tensor, "n d"], temperature: float) -> Float[Tensor, ""]:
    """Cross-entropy of finding each feature among all features by their similarity over the batch."""
    features = F.normalize(z, dim=0)
    return F.cross_entropy(features.T @ features / temperature, torch.arange(z.shape[1], device=z.device))
