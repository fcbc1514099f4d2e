"""Real numbers as integers modulo 2^32, whose sum gives the sum of the numbers within the rounding."""

import numpy as np

from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.masks import Integers

STEP = 2.0**-22  # between two numbers that can be sent
LIMIT = 500.0  # largest absolute value; a sum of weighted numbers must stay below 512 with its rounding
FACTOR = 2.0**10  # of the two parts of a number that is sent finely
FINE_STEP = STEP / FACTOR  # between two numbers that can be sent finely; they have FACTOR times the range

Reals = np.ndarray[tuple[int], np.dtype[np.float64]]


def encode(values: Reals) -> Integers:
    """Round numbers to multiples of STEP, as integers modulo 2^32; negative ones are in the upper half."""
    if not np.all(np.abs(values) <= LIMIT):  # also false for nan
        raise ProtocolError(f"A number of the update is beyond {LIMIT:g}, or not finite.")
    return np.rint(values / STEP).astype(np.int64).astype(np.uint32)


def decode(total: Integers) -> Reals:
    """The sum of numbers from the sum of their encodings; it must be between -512 and 512."""
    return total.view(np.int32).astype(np.float64) * STEP


def encode_finely(values: Reals) -> Integers:
    """Round numbers to multiples of FINE_STEP, in two integers each: the coarse parts, then the rests.

    A rest is so small that the sum over 4,000 clients does not overflow.
    """
    if not np.all(np.abs(values) <= LIMIT * FACTOR):
        raise ProtocolError(f"A statistic is beyond {LIMIT * FACTOR:g}, or not finite.")
    coarse = np.rint(values / (STEP * FACTOR)) * (STEP * FACTOR)
    return np.concatenate([encode(coarse / FACTOR), encode((values - coarse) * FACTOR)])


def decode_finely(total: Integers) -> Reals:
    """The sum of numbers from the sum of their results of `encode_finely`."""
    coarse, rest = np.split(total, 2)
    return decode(coarse) * FACTOR + decode(rest) / FACTOR
