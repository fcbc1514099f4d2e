"""What was drawn for each sample: a row per sample in every field, so that any slice can be applied."""

from typing import NamedTuple

import torch
from torch import Tensor


class Parameters(NamedTuple):
    """One view of each sample; every field holds n float32 numbers on the CPU."""

    width: Tensor  # of the crop, as a fraction of the image's
    height: Tensor
    x: Tensor  # centre of the crop, in half widths from the centre of the image
    y: Tensor  # the same in half heights
    flip: Tensor  # -1 mirrors left and right, 1 does not
    angle: Tensor  # radians
    shear: Tensor  # columns moved per row
    brightness: Tensor  # factor
    contrast: Tensor  # factor about the view's mean grey
    saturation: Tensor  # factor; 0 is greyscale
    hue: Tensor  # turns about the grey axis
    sigma: Tensor  # of the Gaussian blur in output pixels; 0 is none

    @classmethod
    def identity(cls, n: int) -> "Parameters":
        """The parameters that leave n images as they are."""
        one, zero = torch.ones(n), torch.zeros(n)
        return cls(one, one, zero, zero, one, zero, zero, one, one, one, zero, zero)

    def take(self, rows: slice | Tensor) -> "Parameters":
        """The parameters of these samples."""
        return Parameters(*(field[rows] for field in self))
