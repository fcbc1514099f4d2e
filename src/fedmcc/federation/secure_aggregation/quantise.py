"""Real numbers as integers modulo 2^32, whose sum gives the sum of the numbers within the rounding."""

import numpy as np

from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.masks import Integers

STEP = 2.0**-22  # between two numbers that can be sent
LIMIT = 500.0  # largest absolute value; a sum of weighted numbers must stay below 512 with its rounding

Reals = np.ndarray[tuple[int], np.dtype[np.float64]]


def encode(values: Reals) -> Integers:
    """Round numbers to multiples of STEP, as integers modulo 2^32; negative ones are in the upper half."""
    if not np.all(np.abs(values) <= LIMIT):  # also false for nan
        raise ProtocolError(f"A number of the update is beyond {LIMIT:g}, or not finite.")
    return np.rint(values / STEP).astype(np.int64).astype(np.uint32)


def decode(total: Integers) -> Reals:
    """The sum of numbers from the sum of their encodings; it must be between -512 and 512."""
    return total.view(np.int32).astype(np.float64) * STEP
