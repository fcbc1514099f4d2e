"""Randomness as an argument: generators derived from a seed and the place where they are used."""

import zlib

import numpy as np
import torch


def derive(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one place of use, such as (seed, "train", client, stage, round)."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in place]
    sequence = np.random.SeedSequence([seed, *words, 1])  # the 1 keeps trailing zeros apart
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *place: int | str) -> torch.Generator:
    """A CPU generator for one place of use; its numbers do not depend on what ran before."""
    return torch.Generator().manual_seed(derive(seed, *place))
