"""An encoder without weights: the features of an image are its pixels."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn


class Pixels(nn.Module):
    """The pixels of an image as a row."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.shape = (channels, size, size)
        self.features = channels * size**2

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        return self.collapse(self.maps(images))

    def maps(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """The images themselves."""
        return images

    def collapse(self, maps: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """The pixels of each image as a row."""
        return maps.flatten(start_dim=1)


@dataclass(frozen=True)
class PixelsOptions:
    """The pixels themselves as features, without weights: for k-means and spectral clustering of images."""

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images of this size."""
        return Pixels(channels, size)
