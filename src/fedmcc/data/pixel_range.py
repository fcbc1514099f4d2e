"""Scaling of pixels of more than 8 bits to bytes."""

import numpy as np
from jaxtyping import UInt8


def eight_bits(pixels: np.ndarray, limits: tuple[float, float] | None = None) -> UInt8[np.ndarray, "..."]:
    """Scale the values between the limits to 0..255; without limits, between the smallest and the largest.

    Otherwise 12 bits stored in 16 would look black.
    """
    values = np.nan_to_num(pixels.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = limits or (values.min(), values.max())
    scaled = (values - low) * (255.0 / max(high - low, 1e-12))
    return np.asarray(np.rint(scaled.clip(0, 255)), dtype=np.uint8)
