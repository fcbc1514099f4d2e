"""Drawn parameters of views: one row per sample in every field, so that any slice can be applied."""

from typing import NamedTuple

import torch
from torch import Tensor


class Parameters(NamedTuple):
    """Parameters of one view of each sample; every field holds n float32 numbers on the CPU."""

    width: Tensor  # of the crop, as a fraction of the image width
    height: Tensor  # of the crop, as a fraction of the image height
    x: Tensor  # centre of the crop, in half widths from the centre of the image
    y: Tensor  # centre of the crop, in half heights from the centre of the image
    flip: Tensor  # -1 mirrors left and right, 1 does not
    angle: Tensor  # radians
    shear: Tensor  # horizontal shift in columns per row
    brightness: Tensor  # factor
    contrast: Tensor  # factor about the view's mean grey
    saturation: Tensor  # factor; 0 is greyscale
    hue: Tensor  # rotation about the grey axis, in full turns
    sigma: Tensor  # of the Gaussian blur, in output pixels; 0 is no blur

    @classmethod
    def identity(cls, count: int) -> "Parameters":
        """Parameters that leave `count` images unchanged."""
        one, zero = torch.ones(count), torch.zeros(count)
        return cls(one, one, zero, zero, one, zero, zero, one, one, one, zero, zero)

    def take(self, rows: slice | Tensor) -> "Parameters":
        """Select the parameters of these samples."""
        return Parameters(*(field[rows] for field in self))
