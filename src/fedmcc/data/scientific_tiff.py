"""TIFF files that Pillow does not read, such as images of several 16-bit channels from a microscope."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmcc.data.pixel_range import eight_bits

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_CHANNELS = 16  # a shorter axis holds channels, a longer one is a side of the image


def read_tiff(path: Path, max_pixels: int) -> "Image":
    """Read the first image of a TIFF file: one channel as grey, of more the first three as colours."""
    import tifffile
    from PIL import Image

    with tifffile.TiffFile(path) as file:
        page = file.series[0]
        if np.prod(page.shape, dtype=float) > max_pixels * MAX_CHANNELS:
            raise Image.DecompressionBombError
        channels = split_channels(page.asarray(), page.axes)
    planes = [eight_bits(channel) for channel in channels[:3]]
    while 1 < len(planes) < 3:
        planes.append(np.zeros_like(planes[0]))
    return Image.fromarray(planes[0] if len(planes) == 1 else np.stack(planes, axis=-1))


def split_channels(values: np.ndarray, axes: str) -> np.ndarray:
    """Channels, height and width of an array with named axes; of other axes the middle is taken."""
    for axis in range(len(axes) - 1, -1, -1):
        name = axes[axis]
        channel = name in "CS" or (name in "QI" and values.shape[axis] <= MAX_CHANNELS)
        if name not in "YX" and not channel:
            values, axes = values.take(values.shape[axis] // 2, axis), axes[:axis] + axes[axis + 1 :]
    names = [name for name in axes if name not in "YX"]
    order = [*(axes.index(name) for name in names), axes.index("Y"), axes.index("X")]
    return values.transpose(order).reshape(-1, *(values.shape[axes.index(name)] for name in "YX"))
