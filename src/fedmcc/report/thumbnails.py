"""Small pictures inside the page: each on its own, or thousands on one sheet."""

import base64
import io
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

SIDE = 96  # pixels of a picture of the gallery, at most
SHEET_SIDE = 40  # of one on a sheet
PLAIN = 32  # pixels up to which pictures are stored as they are: there is little to save
QUALITY = 82

Pixels = UInt8[np.ndarray, "c h w"]
Stack = UInt8[np.ndarray, "n c h w"]


class Sheet(NamedTuple):
    """Pictures side by side: the sheet, the size of each, and how many there are in a row."""

    url: str
    width: int
    height: int
    columns: int
    rows: int


def thumbnail(pixels: Pixels) -> str:
    """One picture as a data URL."""
    picture = _picture(pixels, SIDE)
    return _url(picture, lossless=max(picture.size) <= PLAIN)


def sheet(images: Stack, chosen: Int64[np.ndarray, " m"]) -> Sheet:
    """The chosen images on one sheet, row by row; they may be more than fit in memory."""
    columns = math.isqrt(len(chosen) - 1) + 1
    rows = -(-len(chosen) // columns)
    width, height = _picture(images[0], SHEET_SIDE).size
    page = Image.new("RGB" if images.shape[1] == 3 else "L", (columns * width, rows * height))
    for place, image in enumerate(chosen):
        row, column = divmod(place, columns)
        page.paste(_picture(np.asarray(images[image]), SHEET_SIDE), (column * width, row * height))
    return Sheet(_url(page, lossless=max(width, height) <= PLAIN // 2), width, height, columns, rows)


def _picture(pixels: Pixels, side: int) -> Image.Image:
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
    picture.thumbnail((side, side), Image.Resampling.BOX)
    return picture


def _url(picture: Image.Image, lossless: bool) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", lossless=lossless, quality=QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
