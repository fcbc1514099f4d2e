"""Masks: pseudorandom integers modulo 2^32 from a seed of 256 bits, by AES in counter mode."""

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

BLOCK = 2**18  # integers at a time, few enough for the processor's cache

Integers = np.ndarray[tuple[int], np.dtype[np.uint32]]


def add_mask(values: Integers, seed: bytes) -> None:
    """Add the mask of a seed to values in place, modulo 2^32."""
    for part, mask in _parts(values, seed):
        np.add(part, mask, out=part)


def subtract_mask(values: Integers, seed: bytes) -> None:
    """Subtract the mask of a seed from values in place, modulo 2^32."""
    for part, mask in _parts(values, seed):
        np.subtract(part, mask, out=part)


def _parts(values: Integers, seed: bytes) -> Iterator[tuple[Integers, Integers]]:
    """Parts of the values, each with its part of the mask."""
    # A seed is used for one mask only, so that the counter can start at 0.
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    zeros, output = bytes(4 * BLOCK), bytearray(4 * BLOCK + 15)
    for start in range(0, len(values), BLOCK):
        part = values[start : start + BLOCK]
        stream.update_into(memoryview(zeros)[: 4 * len(part)], output)
        yield part, np.frombuffer(output, "<u4", len(part))
