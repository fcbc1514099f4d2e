"""Small images embedded in the page: single ones as data URLs, or thousands on one sprite sheet."""

import base64
import io
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

THUMBNAIL_SIDE = 96  # pixels, at most
SPRITE_SIDE = 40  # pixels of an image on a sprite sheet, at most
LOSSLESS_SIDE = 32  # pixels: smaller images are stored without loss, which costs few bytes
QUALITY = 82

Pixels = UInt8[np.ndarray, "c h w"]
Stack = UInt8[np.ndarray, "n c h w"]


class SpriteSheet(NamedTuple):
    """Many images in one: the data URL, the size of each image, and the columns and rows."""

    url: str
    width: int
    height: int
    columns: int
    rows: int


def thumbnail(pixels: Pixels) -> str:
    """One image as a data URL."""
    image = _resized(pixels, THUMBNAIL_SIDE)
    return _url(image, lossless=max(image.size) <= LOSSLESS_SIDE)


def sprite_sheet(images: Stack, chosen: Int64[np.ndarray, " m"]) -> SpriteSheet:
    """The chosen images on one sheet, row by row; `images` may be larger than memory."""
    columns = math.isqrt(len(chosen) - 1) + 1
    rows = -(-len(chosen) // columns)
    width, height = _resized(images[0], SPRITE_SIDE).size
    sheet = Image.new("RGB" if images.shape[1] == 3 else "L", (columns * width, rows * height))
    for place, index in enumerate(chosen):
        row, column = divmod(place, columns)
        sheet.paste(_resized(np.asarray(images[index]), SPRITE_SIDE), (column * width, row * height))
    lossless = max(width, height) <= LOSSLESS_SIDE // 2
    return SpriteSheet(_url(sheet, lossless), width, height, columns, rows)


def _resized(pixels: Pixels, side: int) -> Image.Image:
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
    image.thumbnail((side, side), Image.Resampling.BOX)
    return image


def _url(image: Image.Image, lossless: bool) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", lossless=lossless, quality=QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
