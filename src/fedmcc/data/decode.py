"""Decoding of an image file of any format, mode and size to an array of a given shape."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from fedmcc.data.formats import MissingReaderError, open_image, remedy
from fedmcc.data.pixel_range import eight_bits

if TYPE_CHECKING:
    from PIL.Image import Image

DecodedImage = UInt8[np.ndarray, "c h w"]
HeightWidth = tuple[int, int]

MAX_IMAGE_PIXELS = 100_000_000  # 300 MB when decoded; larger images are skipped
GREY_MODES = ("1", "L", "LA", "La")
HIGH_DEPTH_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # more than 8 bits per pixel


def decode(path: Path, shape: HeightWidth, channels: int, max_pixels: int = MAX_IMAGE_PIXELS) -> DecodedImage:
    """Decode an image, rotate it upright, scale it to cover the given shape and crop the centre."""
    with open_image(path, max_pixels) as image:
        return decode_image(image, shape, channels, max_pixels)


def decode_image(
    image: "Image", shape: HeightWidth, channels: int, max_pixels: int = MAX_IMAGE_PIXELS
) -> DecodedImage:
    """Rotate an open image upright, scale it to cover the given shape and crop the centre."""
    from PIL import Image, ImageOps

    _refuse_huge(image, max_pixels)
    # For JPEG files only: large photographs are decoded at a reduced size.
    image.draft(None, (2 * max(shape), 2 * max(shape)))
    upright = ImageOps.exif_transpose(image)
    flat = _flatten(upright).convert("L" if channels == 1 else "RGB")
    cropped = ImageOps.fit(flat, shape[::-1], Image.Resampling.BICUBIC)
    pixels = np.asarray(cropped)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def is_grey(path: Path) -> bool | None:
    """Whether the image has a greyscale mode; None if the file is not an image."""
    try:
        with open_image(path, MAX_IMAGE_PIXELS) as image:
            return is_grey_image(image)
    except Exception:  # a decoder may raise any exception on a damaged file
        return None


def is_grey_image(image: "Image") -> bool:
    """Whether an open image has a greyscale mode."""
    return image.mode in GREY_MODES + HIGH_DEPTH_MODES


def reason(error: Exception, path: Path) -> str:
    """Short reason why a file could not be decoded, with the remedy if the format needs one."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, MissingReaderError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return remedy(path) or "not an image"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _refuse_huge(image: "Image", max_pixels: int) -> None:
    from PIL import Image

    if image.width * image.height > max_pixels:
        raise Image.DecompressionBombError


def _flatten(image: "Image") -> "Image":
    """Convert to 8 bits per channel without transparency, which becomes white."""
    from PIL import Image

    if image.mode in HIGH_DEPTH_MODES:
        return Image.fromarray(eight_bits(np.asarray(image)))
    if not image.has_transparency_data:
        return image
    layered = image.convert("RGBA")
    white = Image.new("RGBA", layered.size, "white")
    return Image.alpha_composite(white, layered).convert("RGB")
