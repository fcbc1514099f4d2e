"""Labelled images to train and to test classifiers on, with their features."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted
from fedmcc.numerics.randomness import generator

HELD_OUT_SHARE = 0.2  # of every class, if a data set has no test split
HELD_OUT_SPLIT = "held-out fifth"  # its name in results

Rows = Int64[np.ndarray, " _"]


class Examples(NamedTuple):
    """Features or images, one per row, and their classes."""

    inputs: np.ndarray
    labels: Int[np.ndarray, " n"]

    def take(self, rows: Rows) -> "Examples":
        """Select rows."""
        return Examples(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Images with their features and assignments."""

    images: ImageSet
    extracted: Extracted


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """The rows of a set of images that have a label, or some of these rows."""

    encoded: EncodedImages
    rows: Rows
    split: str

    @cached_property
    def features(self) -> Examples:
        """Features of the frozen encoder, and classes."""
        return Examples(self.encoded.extracted.features[self.rows], self.labels)

    @property
    def labels(self) -> Int64[np.ndarray, " n"]:
        """Class of each image."""
        labels = self.encoded.images.labels
        assert labels is not None  # checked by `labelled`
        own: np.ndarray = labels[self.rows]
        return own

    def images(self, rows: Rows | slice = slice(None)) -> Examples:
        """Pixels and classes of all images, or of some rows."""
        return Examples(self.encoded.images.images[self.rows[rows]], self.labels[rows])


def labelled(encoded: EncodedImages, split: str) -> LabelledImages:
    """All images that have a label."""
    labels = encoded.images.labels
    rows = np.flatnonzero(np.zeros(0) if labels is None else labels >= 0)
    if len(rows) == 0:
        raise InputError(f"No image of the split '{split}' has a label: use the protocol clustering.")
    return LabelledImages(encoded, rows, split)


def hold_out_fifth(encoded: EncodedImages) -> tuple[LabelledImages, LabelledImages]:
    """Labelled images to train and to test on: a fifth of every class is held out, the same in every run."""
    images = labelled(encoded, encoded.images.split)
    test_rows = stratified(images.labels, HELD_OUT_SHARE, generator(0, "held-out"), minimum=0)
    if len(test_rows) == 0:
        raise InputError("No class has 3 labelled images, which holding one out needs: give more images.")
    train_rows = np.setdiff1d(np.arange(len(images.rows)), test_rows)
    return (
        LabelledImages(encoded, images.rows[train_rows], "the rest"),
        LabelledImages(encoded, images.rows[test_rows], HELD_OUT_SPLIT),
    )


def stratified(
    labels: Int[np.ndarray, " n"], share: float, draw: torch.Generator, minimum: int = 1
) -> Int64[np.ndarray, " m"]:
    """Random rows in ascending order: this share of every class, but at least `minimum` of each.

    scikit-learn's splits do not accept shares of less than one image per class.
    """
    order = torch.randperm(len(labels), generator=draw).numpy()
    classes = [order[labels[order] == label] for label in np.unique(labels)]
    drawn = [rows[: max(minimum, round(share * len(rows)))] for rows in classes]
    return np.sort(np.concatenate(drawn))
