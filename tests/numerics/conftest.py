"""Graphs with known parts."""

import numpy as np
import pytest


@pytest.fixture
def block_graph():
    """A function that returns a noisy symmetric graph of blocks and the block of every node."""
    return _block_graph


def _block_graph(sizes, inside=1.0, between=0.01, seed=0):
    """A noisy symmetric graph of blocks, and the block of every node."""
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    means = np.where(blocks[:, None] == blocks, inside, between)
    noise = np.random.default_rng(seed).uniform(0.5, 1.5, means.shape)
    return means * (noise + noise.T) / 2, blocks
