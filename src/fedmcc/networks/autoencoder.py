"""An encoder with a short code, and a decoder that reconstructs the image from it."""

from itertools import pairwise
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.networks.heads import Norm, normalisation
from fedmcc.networks.momentum import Branch, Network

MAX_FIRST_SIDE = 4  # of the decoder's first map
MAX_WIDTH_FACTOR = 8  # width of the decoder's first map relative to its last


class Coded(nn.Module):
    """An encoder followed by a linear layer, whose outputs, the code, are the features."""

    def __init__(self, encoder: nn.Module, features: int, code: int) -> None:
        super().__init__()
        self.encoder, self.code = encoder, nn.Linear(features, code)
        self.features, self.shape = code, image_shape(encoder)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        code: Tensor = self.code(self.encoder(images))
        return code


class Decoder(nn.Module):
    """Nearest-neighbour enlargement and 3x3 convolutions from a code to the logits of an image's pixels.

    It mirrors `ConvNet`: the convolution of the largest map has the pixels themselves as its outputs, so that
    the decoder takes about as long as that encoder.
    """

    def __init__(self, code: int, shape: tuple[int, int, int], width: int, norm: Norm) -> None:
        super().__init__()
        channels, side, _ = shape
        self.sides = [side]
        while self.sides[0] > MAX_FIRST_SIDE:
            self.sides.insert(0, self.sides[0] // 2)
        doublings = reversed(range(max(1, len(self.sides) - 1)))  # of the width, for each map but the last
        widths = [width * min(MAX_WIDTH_FACTOR, 2**count) for count in doublings]
        self.first = nn.Linear(code, widths[0] * self.sides[0] ** 2)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), normalisation(norm, outputs), nn.ReLU())
            for inputs, outputs in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, code: Float[Tensor, "n d"]) -> Float[Tensor, "n c h w"]:
        side = self.sides[0]
        maps = F.relu(self.first(code)).view(len(code), -1, side, side)
        for side, stage in zip(self.sides[1:], self.stages, strict=False):
            maps = stage(F.interpolate(maps, size=(side, side)))
        logits: Tensor = self.last(F.interpolate(maps, size=2 * self.sides[-1:]))
        return logits


class Autoencoder(Network):
    """An online branch whose features are a code, and a decoder."""

    def __init__(self, online: Branch, decoder: Decoder) -> None:
        super().__init__(online)
        self.decoder = decoder


def image_shape(encoder: Any) -> tuple[int, int, int]:
    """Channels, height and width of the images that an encoder takes."""
    shape: tuple[int, int, int] | None = getattr(encoder, "shape", None)
    if shape is None:
        raise InputError("This method needs an encoder with the attribute `shape`: choose another encoder.")
    return shape
