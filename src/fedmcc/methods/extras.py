"""Extra tensors of updates: their expected form, and their sum over clients."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.numerics.matrices import is_positive_semidefinite
from fedmcc.numerics.state_dicts import State

TensorSpec = tuple[torch.dtype, tuple[int | None, ...]]  # data type and shape of a tensor; None: any length


class Additive(NamedTuple):
    """An extra tensor of which the server needs only the sum or the mean over all images."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_sum: bool = False  # over the client's images; otherwise a mean
    symmetric: bool = False  # a matrix without negative eigenvalues
    norm: float | None = None  # largest Euclidean norm of a client's mean; 0: equal for all; None: unknown

    @property
    def length(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


def additive_mismatch(extras: State, expected: Mapping[str, Additive]) -> str:
    """How an update's extras differ in names, types or shapes from additive ones, as a sentence; or empty."""
    return extras_mismatch(extras, {name: (extra.dtype, extra.shape) for name, extra in expected.items()})


def extras_mismatch(extras: State, expected: Mapping[str, TensorSpec]) -> str:
    """How names, types or shapes of an update's extras differ from the expected, as a sentence; or empty."""
    if extras.keys() != expected.keys():
        names = ", ".join(sorted(extras)) or "none"
        return f"Its extra tensors are {names:.80}; expected {', '.join(sorted(expected))}."
    for name, (dtype, shape) in expected.items():
        value = extras[name]
        fits = value.dim() == len(shape) and all(
            wanted in (None, length) for length, wanted in zip(value.shape, shape, strict=True)
        )
        if not fits or value.dtype != dtype:
            return f"Its {name} is {value.dtype} of shape {tuple(value.shape)}; expected {dtype} of {shape}."
    return ""


def affinity_error(update: Update, count: int) -> str:
    """Why a sum of w wᵀ over an update's images, each row w a distribution, is refused; empty if accepted."""
    if mismatch := extras_mismatch(update.extras, {"affinity": (torch.float64, (count, count))}):
        return mismatch
    affinity = update.extras["affinity"] / update.samples
    valid = (
        bool((affinity >= 0).all())
        and abs(float(affinity.sum()) - 1) <= 1e-2
        and is_positive_semidefinite(affinity, 1e-5)
    )
    return "" if valid else "Its affinities are not those of one soft assignment per image."


def add_up(updates: Sequence[Update], key: str, counts: Sequence[float]) -> Tensor:
    """Sum of the clients' extras of this name, each reduced to the number of images that count."""
    total = torch.zeros((), dtype=torch.float64)
    for update, count in zip(updates, counts, strict=True):
        total = total + update.extras[key].double() * (count / update.samples)
    return total


def concatenate(updates: Sequence[Update], key: str, counts: Sequence[float]) -> Tensor:
    """The clients' sizes of this name in one row, each reduced to the number of images that count."""
    shares = [count / update.samples for update, count in zip(updates, counts, strict=True)]
    return torch.cat([update.extras[key] * share for update, share in zip(updates, shares, strict=True)])
