"""One image file of any format, mode and size, as an array of one shape."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

if TYPE_CHECKING:
    from PIL.Image import Image

DecodedImage = UInt8[np.ndarray, "c h w"]
HeightWidth = tuple[int, int]  # height, then width

MAX_IMAGE_PIXELS = 100_000_000  # 300 MB once decoded; larger files are skipped
GREY_MODES = ("1", "L", "LA", "La")
HIGH_DEPTH_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # more than 8 bits


def decode(path: Path, sides: HeightWidth, channels: int) -> DecodedImage:
    """The image upright, scaled until it covers these sides, its centre cut out."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        _refuse_huge(image)
        image.draft(
            None, (2 * max(sides), 2 * max(sides))
        )  # JPEG alone: decodes large photographs at a fraction
        upright = ImageOps.exif_transpose(image)
        flat = _flatten(upright).convert("L" if channels == 1 else "RGB")
        cut = ImageOps.fit(flat, sides[::-1], Image.Resampling.BICUBIC)
    pixels = np.asarray(cut)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def is_grey(path: Path) -> bool | None:
    """Whether the file's mode has no colours; None: it is no image."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode in GREY_MODES + HIGH_DEPTH_MODES
    except Exception:  # whatever a damaged file makes a format's reader raise
        return None


def reason(error: Exception) -> str:
    """Why a file could not be decoded, in a few words."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _refuse_huge(image: "Image") -> None:
    from PIL import Image

    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError


def _flatten(image: "Image") -> "Image":
    """Eight bits a channel and no transparency, which becomes white."""
    from PIL import Image

    if image.mode in HIGH_DEPTH_MODES:
        return Image.fromarray(_stretch(np.asarray(image)))
    if not image.has_transparency_data:
        return image
    layered = image.convert("RGBA")
    white = Image.new("RGBA", layered.size, "white")
    return Image.alpha_composite(white, layered).convert("RGB")


def _stretch(deep: np.ndarray) -> UInt8[np.ndarray, "h w"]:
    """The image's own darkest to brightest on 0..255, since 12 bits in a 16-bit file would be black."""
    values = np.nan_to_num(deep.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    return np.asarray(np.rint((values - low) * (255.0 / max(high - low, 1e-12))), dtype=np.uint8)
