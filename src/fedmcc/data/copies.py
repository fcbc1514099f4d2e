"""Images that are stored several times, found by their bytes: their features can differ by rounding."""

from hashlib import blake2b

import numpy as np
from jaxtyping import Int64

from fedmcc.data.base import Images


def first_of_copies(images: Images) -> Int64[np.ndarray, " n"]:
    """For each image, the number of the first image of equal bytes: its own, unless it is a copy."""
    first: dict[bytes, int] = {}
    digests = (blake2b(image.tobytes(), digest_size=16).digest() for image in images)
    return np.array([first.setdefault(digest, row) for row, digest in enumerate(digests)], dtype=np.int64)


def count_different(images: Images) -> int:
    """The number of images without their copies."""
    return len(np.unique(first_of_copies(images)))
