"""Brightness, contrast, saturation, hue and greyscale as one affine colour transform per sample."""

from math import tau
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedmcc.views.parameters import Parameters

Pixels = Float[Tensor, "n c h w"]

_LUMA = torch.tensor([0.299, 0.587, 0.114])  # Y of YIQ
_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_QUARTER = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # quarter turn of the I-Q plane

_GREY = _LUMA.expand(3, 3)  # maps every colour to its grey
_CHROMA = torch.eye(3) - _GREY  # the colour without its grey
_TURNED = torch.linalg.solve(_YIQ, _QUARTER @ _YIQ)  # the chroma, turned by a quarter
_BASIS = torch.stack([_GREY, _CHROMA, _TURNED]).view(3, 9)


class ColourMap(NamedTuple):
    """Colour matrix of each sample, and the weights of its mean colour in the offset of every pixel."""

    matrix: Float[Tensor, "n c c"]
    lift: Float[Tensor, "n c"]


def colour_map(parameters: Parameters, channels: int) -> ColourMap:
    """The colour map of each sample.

    The order is brightness, contrast about the mean grey, saturation and hue. Values are not clipped in
    between, so the four operations are one matrix and one offset.
    """
    gain = parameters.brightness * parameters.contrast
    lift = (parameters.brightness - gain)[:, None]
    if channels == 1:
        return ColourMap(gain[:, None, None], lift)
    chroma, turn = gain * parameters.saturation, tau * parameters.hue
    weights = torch.stack([gain, chroma * turn.cos(), chroma * turn.sin()], dim=1)
    return ColourMap((weights @ _BASIS).view(len(gain), 3, 3), lift * _LUMA)


def recolour(pixels: Pixels, matrix: Float[Tensor, "n c c"], lift: Float[Tensor, "n c"], out: Pixels) -> None:
    """Apply the colour matrix and the offset, clip to [0, 1] and write the result to `out`."""
    flat = pixels.flatten(2)
    offset = lift[:, None] @ flat.mean(dim=2, keepdim=True)
    torch.baddbmm(offset, matrix, flat, out=out.view_as(flat)).clamp_(0, 1)
