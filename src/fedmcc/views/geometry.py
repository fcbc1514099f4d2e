"""Crop, resize, flip, rotation, shear and shift as one affine resampling per sample."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from fedmcc.views.parameters import Parameters

Transform = Float[Tensor, "n 2 3"]
# Halving stops before fewer pixels than this remain per output pixel: below it, halving a photograph costs
# more detail than aliasing does, measured against exact antialiasing.
MIN_PIXELS_PER_OUTPUT = 0.8
PADDINGS = ("zeros", "border", "reflection")


def affine(parameters: Parameters, aspect: float) -> Transform:
    """Map output coordinates to input coordinates, both from -1 to 1; `aspect` is height / width.

    Rotation and shear are applied in pixel units, so that they do not distort images that are not square.
    """
    cos, sin, shear = parameters.angle.cos(), parameters.angle.sin(), parameters.shear
    width, height = parameters.width * parameters.flip, parameters.height
    to_x = (cos * width, (cos * shear - sin) * height * aspect, parameters.x)
    to_y = (sin * width / aspect, (sin * shear + cos) * height, parameters.y)
    return torch.stack(to_x + to_y, dim=1).view(len(cos), 2, 3)


def count_halvings(parameters: Parameters, rows: float, columns: float) -> Int[Tensor, " n"]:
    """Number of times that each crop is halved before sampling.

    `rows` and `columns` are the pixels of the whole image per output pixel.
    """
    pixels = torch.minimum(parameters.height * rows, parameters.width * columns)
    return (pixels / MIN_PIXELS_PER_OUTPUT).clamp_(min=1).log2_().floor_().int()


def resample(
    images: UInt8[Tensor, "n c h w"],
    transform: Transform,
    halvings: Int[Tensor, " n"],
    shape: tuple[int, int],
    padding: str,
) -> Float[Tensor, "n c y x"]:
    """Sample each image by its transform, at the given shape and in [0, 1].

    Each sample is first halved as often as its crop requires: large crops do not alias, and small crops keep
    their detail.
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
    # The grid is one broadcast sum: affine_grid would take longer than the sampling itself.
    y, x = (torch.arange(1 - side, side, 2, device=pixels.device) / side for side in shape)
    columns = transform[:, :, :1] * x + transform[:, :, 2:]
    rows = transform[:, :, 1:2] * y
    grid = columns[:, :, None, :] + rows[:, :, :, None]
    return F.grid_sample(pixels, grid.permute(0, 2, 3, 1), padding_mode=padding, align_corners=False)
