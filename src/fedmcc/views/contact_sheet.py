"""A contact sheet of views for visual inspection."""

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Generator, Tensor

from fedmcc.views.pipeline import Views

MARGIN = 2  # pixels around each tile
MIN_TILE_SIDE = 64  # smaller images are enlarged to about this size in pixels


def contact_sheet(
    images: UInt8[Tensor, "n c h w"], views: Views, generator: Generator, columns: int = 8
) -> Image.Image:
    """Draw one row per image: the image itself, then `columns - 1` views of it."""
    drawn = [views(images, generator) for _ in range(columns - 1)]
    tiles = torch.stack([views.plain(images), *drawn], dim=1)
    scale = max(1, round(MIN_TILE_SIDE / max(tiles.shape[3:])))
    tiles = tiles.repeat_interleave(scale, dim=3).repeat_interleave(scale, dim=4)
    return _to_image(torch.nn.functional.pad(tiles, (MARGIN,) * 4, value=1.0))


def _to_image(tiles: Float[Tensor, "rows columns c h w"]) -> Image.Image:
    rows, columns, channels, height, width = tiles.shape
    sheet = tiles.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    levels = sheet.expand(-1, -1, 3).mul(255).round().to(torch.uint8)
    return Image.fromarray(levels.cpu().numpy())
