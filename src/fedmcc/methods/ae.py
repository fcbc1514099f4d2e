"""AE: an autoencoder whose short code is clustered, the baseline of deep clustering."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.inputs import PLAIN, VIEW
from fedmcc.networks.autoencoder import Autoencoder, Coded, Decoder
from fedmcc.networks.heads import Norm
from fedmcc.networks.momentum import Branch


@dataclass(frozen=True)
class AE:
    """An autoencoder: the code that reconstructs an image, for a clustering such as lloyd."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Hinton and Salakhutdinov, Science",
        2006,
        "a clustering, an encoder with `shape`",
        cost=0.67,
    )

    rounds: int = 100  # R
    epochs: int = 1  # E
    code: int = 10  # numbers from which an image is reconstructed, its features
    width: int = 16  # channels of the decoder's last hidden map
    norm: Norm = "batch"  # normalisation of the decoder
    augment: bool = False  # reconstruct random views instead of the images themselves

    def __post_init__(self) -> None:
        require_positive(self, "code", "width")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Autoencoder:
        """The encoder with a code, and the decoder."""
        coded = Coded(encoder, features, self.code)
        return Autoencoder(Branch(coded), Decoder(self.code, coded.shape, self.width, self.norm))

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains encoder and decoder."""
        sees = (VIEW,) if self.augment else (PLAIN,)
        return (Reconstruction(rounds=self.rounds, epochs=self.epochs, sees=sees),)


class Outputs(NamedTuple):
    """The mean squared error of each image's pixels."""

    errors: Tensor


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Stage):
    """Reconstruct images from their codes; without averaging the decoder, clients' codes would not agree."""

    name: str = "reconstruction"
    trained: Parts = ("online.encoder", "decoder")
    shared: Parts = ("online.encoder", "decoder")

    def represent(self, net: Autoencoder, images: Tensor) -> Outputs:
        """Encode and decode the images."""
        return Outputs(squared_errors(net, net.online.encoder(images), images))

    def loss(self, outputs: Outputs) -> Tensor:
        """Mean squared error per pixel."""
        return outputs.errors.mean()


def squared_errors(net: Autoencoder, codes: Tensor, images: Tensor) -> Tensor:
    """Mean squared error of the pixels that the decoder reconstructs from each code."""
    errors: Tensor = (net.decoder(codes).sigmoid() - images).square()
    return errors.flatten(start_dim=1).mean(dim=1)
