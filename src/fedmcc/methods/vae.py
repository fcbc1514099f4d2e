"""VAE: a variational autoencoder (Kingma and Welling, ICLR 2014) whose mean codes are clustered."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.about import About
from fedmcc.methods.ae import AE
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.inputs import PLAIN, ROW, VIEW, Overview
from fedmcc.networks.autoencoder import Autoencoder
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import State


class VariationalAutoencoder(Autoencoder):
    """An autoencoder with a second linear layer beside the code: its log variance."""

    def __init__(self, network: Autoencoder, features: int, code: int) -> None:
        super().__init__(network.online, network.decoder)
        self.spread = nn.Linear(features, code)


@dataclass(frozen=True)
class VAE(AE):
    """A variational autoencoder: the mean code of an image, for a clustering such as lloyd."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Kingma and Welling, ICLR",
        2014,
        "a clustering, an encoder with `shape`",
        cost=0.67,
    )

    beta: float = 1.0  # weight of the divergence from the prior

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < math.inf:
            raise InputError(f"method.beta is {self.beta}: give 0 or more.")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> VariationalAutoencoder:
        """The encoder with mean and variance of a code, and the decoder."""
        return VariationalAutoencoder(super().build(encoder, features, clusters), features, self.code)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and decoder."""
        sees = (VIEW if self.augment else PLAIN, ROW)
        return (Variational(rounds=self.rounds, epochs=self.epochs, sees=sees, beta=self.beta),)


class Outputs(NamedTuple):
    """For each image the cross-entropy summed over pixels, and the divergence from the prior."""

    errors: Tensor
    divergences: Tensor


@dataclass(frozen=True, kw_only=True)
class Variational(Stage):
    """Maximise the evidence lower bound. Each image has new noise in each epoch, in the notes."""

    beta: float
    name: str = "reconstruction"
    trained: Parts = ("online.encoder", "decoder", "spread")
    shared: Parts = ("online.encoder", "decoder", "spread")

    def first_notes(self, net: VariationalAutoencoder, count: int) -> State:
        """Normal noise for the code of each image."""
        shape = (count, net.spread.out_features)
        return {"noise": torch.randn(shape, generator=generator(0, self.name))}

    def prepare(self, net: VariationalAutoencoder, overview: Overview) -> None:
        """Draw the noise of this epoch, independent of how batches are processed."""
        noise, draw = net.notes["noise"], torch.Generator().manual_seed(overview.seed)
        net.notes["noise"] = torch.randn(noise.shape, generator=draw).to(noise)

    def represent(self, net: VariationalAutoencoder, images: Tensor, rows: Tensor) -> Outputs:
        """Decode the mean code plus noise."""
        coded: nn.Module = net.online.encoder
        features = coded.get_submodule("encoder")(images)
        mean, log_variance = coded.get_submodule("code")(features), net.spread(features)
        logits = net.decoder(mean + (log_variance / 2).exp() * net.notes["noise"][rows])
        errors = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
        return Outputs(errors.flatten(start_dim=1).sum(dim=1), divergence(mean, log_variance))

    def loss(self, outputs: Outputs) -> Tensor:
        """The negative evidence lower bound, mean over the images."""
        return (outputs.errors + self.beta * outputs.divergences).mean()


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), summed over the code."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)
