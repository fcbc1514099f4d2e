"""Confidence that can be tested: how likely another view of an image gets the same cluster.

A soft assignment alone says little: a network of a few steps assigns nearly everything with a value near 1.
Temperature scaling (Guo et al., 2017), with clusters of other views in place of labels, corrects this.
"""

import numpy as np
from jaxtyping import Float, Int

Soft = Float[np.ndarray, "n k"]
Clusters = Int[np.ndarray, " n"]

MAX_TEMPERATURE = 1_000.0  # at which assignments are nearly uniform
MIN_ASSIGNMENT = 1e-12  # so that the logarithm is finite
STEPS = 60  # of the search, which divides the interval by 1.5 in each step


def temper(assignments: Soft, temperature: float) -> Soft:
    """Soft assignments at a temperature: 1 keeps them, a higher one brings them closer to uniform."""
    if temperature == 1:
        return assignments
    tempered: Soft = np.exp(_log_tempered(assignments, 1 / temperature)).astype(assignments.dtype)
    return tempered


def fit_temperature(assignments: Soft, others: Clusters) -> float:
    """The temperature, at least 1, at which assignments predict best which clusters other views have.

    The cross entropy is convex in 1 / temperature. One view that could have any cluster is added, so that
    few images cannot make the assignments certain.
    """
    low, high = 1 / MAX_TEMPERATURE, 1.0
    for _ in range(STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if _cross_entropy(assignments, others, first) <= _cross_entropy(assignments, others, second):
            high = second
        else:
            low = first
    return 1 / high


def _cross_entropy(assignments: Soft, others: Clusters, sharpness: float) -> float:
    logs, count = _log_tempered(assignments, sharpness), len(others)
    return -float(logs[np.arange(count), others].sum() + logs.mean()) / (count + 1)


def _log_tempered(assignments: Soft, sharpness: float) -> Float[np.ndarray, "n k"]:
    scaled = np.log(assignments.astype(np.float64).clip(MIN_ASSIGNMENT)) * sharpness
    scaled -= scaled.max(axis=1, keepdims=True)
    logs: np.ndarray = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return logs
