"""Images that are stored several times, found by their bytes: their features can differ by rounding."""

from hashlib import blake2b

import numpy as np
from jaxtyping import Float, Int64, UInt8

from fedmcc.data.base import Images


def first_of_copies(images: Images) -> Int64[np.ndarray, " n"]:
    """For each image, the number of the first image of equal bytes: its own, unless it is a copy."""
    first: dict[bytes, int] = {}
    rows = (first.setdefault(_digest(image), row) for row, image in enumerate(images))
    return np.fromiter(rows, np.int64, len(images))


def count_different(images: Images, most: int) -> int:
    """The number of images without their copies, counted up to `most`."""
    digests: set[bytes] = set()
    for image in images:
        digests.add(_digest(image))
        if len(digests) >= most:
            break
    return len(digests)


def _digest(image: UInt8[np.ndarray, "c h w"] | Float[np.ndarray, "..."]) -> bytes:
    return blake2b(image.tobytes(), digest_size=16).digest()
