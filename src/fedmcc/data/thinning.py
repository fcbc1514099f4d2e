"""Classes of unequal size, made by leaving images out; it uses labels, so it is for simulations only."""

import numpy as np
from jaxtyping import Float64, Int64

Numbers = Int64[np.ndarray, " _"]


def class_shares(ratio: float, classes: int) -> Float64[np.ndarray, " classes"]:
    """The share of its images that each class keeps: ratio^(-i / (C - 1)) of the i-th of C classes."""
    shares: np.ndarray = ratio ** (-np.arange(classes) / max(1, classes - 1))
    return shares


def thinned_rows(labels: Numbers, ratio: float, seed: int) -> Numbers:
    """Sorted rows of the images that are kept when classes are thinned to `class_shares`.

    The seed draws the order of the classes and the images. Images without a label are all kept.
    """
    draw = np.random.default_rng(seed)
    classes = draw.permutation(np.unique(labels[labels >= 0]))
    kept = [np.flatnonzero(labels < 0)]
    for label, share in zip(classes, class_shares(ratio, len(classes)), strict=True):
        rows = np.flatnonzero(labels == label)
        kept.append(draw.permutation(rows)[: max(1, round(share * len(rows)))])
    return np.sort(np.concatenate(kept))
