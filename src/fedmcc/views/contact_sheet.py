"""A picture of views, so that a person can judge them."""

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Generator, Tensor

from fedmcc.views.pipeline import Views

MARGIN = 2  # pixels of the picture around each image
MIN_TILE_SIDE = 64  # smaller images are enlarged to about this side


def contact_sheet(
    images: UInt8[Tensor, "n c h w"], views: Views, generator: Generator, columns: int = 8
) -> Image.Image:
    """A row per image: at its left the image itself, then columns - 1 views of it."""
    drawn = [views(images, generator) for _ in range(columns - 1)]
    tiles = torch.stack([views.plain(images), *drawn], dim=1)
    enlarged = max(1, round(MIN_TILE_SIDE / max(tiles.shape[3:])))
    tiles = tiles.repeat_interleave(enlarged, dim=3).repeat_interleave(enlarged, dim=4)
    return _picture(torch.nn.functional.pad(tiles, (MARGIN,) * 4, value=1.0))


def _picture(tiles: Float[Tensor, "rows columns c h w"]) -> Image.Image:
    rows, columns, channels, height, width = tiles.shape
    sheet = tiles.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    levels = sheet.expand(-1, -1, 3).mul(255).round().to(torch.uint8)
    return Image.fromarray(levels.cpu().numpy())
