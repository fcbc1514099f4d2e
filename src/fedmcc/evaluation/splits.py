"""Which images labels are learned from and which are scored, with what the network makes of them."""

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

HELD_OUT = 0.2  # of every class, where a data set has no test split
FIFTH = "held-out fifth"  # what that split is called

Rows = Int64[np.ndarray, " _"]


class Examples(NamedTuple):
    """Features or images, a row each, and their classes."""

    inputs: np.ndarray
    labels: Int[np.ndarray, " n"]

    def take(self, rows: Rows) -> "Examples":
        """Some of them."""
        return Examples(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Part:
    """Images, with their features and assignments."""

    images: ImageSet
    extracted: Extracted


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images of a part that have a label."""

    part: Part
    rows: Rows
    split: str

    @cached_property
    def features(self) -> Examples:
        """What the frozen encoder makes of them, with their classes."""
        return Examples(self.part.extracted.features[self.rows], self.labels)

    @property
    def labels(self) -> Int64[np.ndarray, " n"]:
        """Their classes."""
        labels = self.part.images.labels
        assert labels is not None  # `labelled` found some
        known: np.ndarray = labels[self.rows]
        return known

    def images(self, rows: Rows | slice = slice(None)) -> Examples:
        """The images themselves or some of them, with their classes."""
        return Examples(self.part.images.images[self.rows[rows]], self.labels[rows])


def labelled(part: Part, split: str) -> Labelled:
    """All images of a part that have a label."""
    labels = part.images.labels
    rows = np.flatnonzero(np.zeros(0) if labels is None else labels >= 0)
    if len(rows) == 0:
        raise InputError(f"No image of the split '{split}' has a label: only clustering can be judged there.")
    return Labelled(part, rows, split)


def with_fifth_held_out(part: Part) -> tuple[Labelled, Labelled]:
    """Labelled images to learn from and to score: of every class a fifth, the same for every run."""
    known = labelled(part, part.images.split)
    scored = stratified(known.labels, HELD_OUT, generator(0, "held-out"), fewest=0)
    if len(scored) == 0:
        raise InputError(
            "No class has the 3 labelled images that it takes to hold one out: give more images."
        )
    learned = np.setdiff1d(np.arange(len(known.rows)), scored)
    return Labelled(part, known.rows[learned], "the rest"), Labelled(part, known.rows[scored], FIFTH)


def stratified(
    labels: Int[np.ndarray, " n"], share: float, draw: torch.Generator, fewest: int = 1
) -> Int64[np.ndarray, " m"]:
    """Random rows, sorted: this share of every class, but at least `fewest` of it.

    scikit-learn's splits refuse shares that are smaller than one image per class.
    """
    order = torch.randperm(len(labels), generator=draw).numpy()
    classes = [order[labels[order] == label] for label in np.unique(labels)]
    drawn = [rows[: max(fewest, round(share * len(rows)))] for rows in classes]
    return np.sort(np.concatenate(drawn))
