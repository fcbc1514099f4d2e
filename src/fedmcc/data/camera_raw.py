"""Camera raw files, developed with the white balance of the camera and turned upright."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_SIDE = 1024  # images of at least twice this side are developed at half their size, several times faster
TURNED = (5, 6)  # values of LibRaw's `flip` that exchange width and height


def read_raw(path: Path, max_pixels: int) -> "Image":
    """Develop a camera raw file as an image of 8 bits per channel."""
    from PIL import Image

    with _opened(path) as raw:
        width, height = raw.sizes.width, raw.sizes.height
        if width * height > max_pixels:
            raise Image.DecompressionBombError
        pixels = raw.postprocess(use_camera_wb=True, half_size=min(width, height) >= 2 * MIN_SIDE)
    return Image.fromarray(pixels)


def raw_sides(path: Path) -> tuple[int, int]:
    """Width and height of a camera raw file when it is upright, without developing it."""
    with _opened(path) as raw:
        sizes = raw.sizes
    return (sizes.height, sizes.width) if sizes.flip in TURNED else (sizes.width, sizes.height)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; errors of LibRaw, whose texts are bytes, become sentences."""
    import rawpy

    try:
        with rawpy.imread(str(path)) as raw:
            yield raw
    except rawpy.LibRawError as error:
        path.open("rb").close()  # raises the error of a file that may not be read
        raise ValueError("damaged, or camera raw of an unknown kind") from error
