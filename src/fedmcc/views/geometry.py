"""Crop, resize, flip, rotation, shear and shift as one affine resampling per sample."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from fedmcc.views.parameters import Parameters

Transform = Float[Tensor, "n 2 3"]
# Pixels that halving leaves per output pixel, at the least: below this a photograph loses more by being
# halved than by aliasing, measured against exact antialiasing.
MIN_PIXELS_PER_OUTPUT = 0.8
PADDINGS = ("zeros", "border", "reflection")


def affine(parameters: Parameters, aspect: float) -> Transform:
    """From the output's coordinates to the input's, both from -1 to 1; aspect is height to width.

    The turn and the shear happen in pixels, so that they keep shapes in images that are not square.
    """
    p = parameters
    cos, sin = p.angle.cos(), p.angle.sin()
    width, height = p.width * p.flip, p.height
    to_x = (cos * width, (cos * p.shear - sin) * height * aspect, p.x)
    to_y = (sin * width / aspect, (sin * p.shear + cos) * height, p.y)
    return torch.stack(to_x + to_y, dim=1).view(len(cos), 2, 3)


def count_halvings(parameters: Parameters, rows: float, columns: float) -> Int[Tensor, " n"]:
    """How often each crop is halved before it is sampled, given the image's pixels per output pixel."""
    pixels = torch.minimum(parameters.height * rows, parameters.width * columns)
    return (pixels / MIN_PIXELS_PER_OUTPUT).clamp_(min=1).log2_().floor_().int()


def resample(
    images: UInt8[Tensor, "n c h w"],
    transform: Transform,
    halvings: Int[Tensor, " n"],
    shape: tuple[int, int],
    padding: str,
) -> Float[Tensor, "n c y x"]:
    """The part of each image that its transform describes, in [0, 1] at the given shape.

    Halving first, sample by sample, keeps large crops from aliasing and the detail of small ones.
    """
    levels = sorted(set(halvings.tolist()))
    if len(levels) == 1:
        return _sample(_reduce(images, levels[0]), transform, shape, padding)
    out = torch.empty((*images.shape[:2], *shape), device=images.device)
    for level in levels:
        rows = (halvings == level).nonzero()[:, 0].to(images.device)
        out[rows] = _sample(_reduce(images[rows], level), transform[rows], shape, padding)
    return out


def _reduce(images: UInt8[Tensor, "n c h w"], level: int) -> Float[Tensor, "n c h2 w2"]:
    pixels = images.float()
    if level:
        height, width = images.shape[2:]
        pixels = F.adaptive_avg_pool2d(pixels, (height >> level, width >> level))
    return pixels.div_(255)


def _sample(
    pixels: Float[Tensor, "n c h w"], transform: Transform, shape: tuple[int, int], padding: str
) -> Float[Tensor, "n c y x"]:
    # One broadcast sum makes the grid; affine_grid takes longer than the sampling itself.
    y, x = (torch.arange(1 - side, side, 2, device=pixels.device) / side for side in shape)
    columns = transform[:, :, :1] * x + transform[:, :, 2:]
    rows = transform[:, :, 1:2] * y
    grid = columns[:, :, None, :] + rows[:, :, :, None]
    return F.grid_sample(pixels, grid.permute(0, 2, 3, 1), padding_mode=padding, align_corners=False)
