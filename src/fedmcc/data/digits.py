"""Handwritten digits of 8 x 8 pixels, included in scikit-learn, without a download."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmcc.data.base import ImageSet, Source

WHITE_LEVEL = 16  # grey levels range from 0 to 16


@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels."""

    views: ClassVar[str] = "digits"

    def read(self) -> ImageSet:
        """Read all digits; the data set has no splits."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / WHITE_LEVEL)).astype(np.uint8)
        classes = tuple(str(digit) for digit in range(10))
        return ImageSet(images[:, None], bunch.target.astype(np.int64), classes, split="all")
