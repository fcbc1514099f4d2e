"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: nothing to download."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmcc.data.base import ImageSet, Source

WHITE_LEVEL = 16  # the grey level that is white


@dataclass(frozen=True)
class Digits(Source):
    """1,797 images of the ten digits."""

    views: ClassVar[str] = "digits"

    def read(self) -> ImageSet:
        """All digits; the set has no splits."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / WHITE_LEVEL)).astype(np.uint8)
        classes = tuple(str(digit) for digit in range(10))
        return ImageSet(images[:, None], bunch.target.astype(np.int64), classes, split="all")
