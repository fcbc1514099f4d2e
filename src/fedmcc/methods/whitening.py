"""Principal axes of all clients' features, scaled, from the sum of the clients' moments."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts
from fedmcc.methods.centroids import HEAD, Statistics, encode
from fedmcc.methods.extras import Additive, TensorSpec, add_up, extras_mismatch
from fedmcc.numerics.matrices import is_positive_semidefinite
from fedmcc.numerics.state_dicts import State

MIN_RELATIVE_VARIANCE = 1e-6  # of the largest variance, so that whitening does not amplify a constant axis
MIN_VARIANCE = 1e-12  # so that whitening constant features gives finite numbers
MAX_WHOLE_MOMENT = 512  # features; of more, clients send the largest principal axes of the second moment
SENT_AXES = 2  # principal axes that a client then sends, per whitened axis


@dataclass(frozen=True, kw_only=True)
class Whitening(Statistics):
    """Clients send the moments of their features; the server puts the whitening axes into the head."""

    power: float = 1.0  # 1: variance 1 on all axes; 0: the variances are kept
    variance: float = 1.0  # share that the axes hold; the others are noise
    name: str = "whitening"
    shared: Parts = (f"{HEAD}.whitening",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Number of unit features, their sum, and the sum of their outer products or its largest axes."""
        first = second = count = torch.zeros((), dtype=torch.float64)
        for features in encode(net, batches):
            unit = F.normalize(features.cpu().double(), dim=1)
            first, second, count = first + unit.sum(dim=0), second + unit.T @ unit, count + len(unit)
        rank = _rank(*net.online.cluster_projector.whitening.axes.shape)
        if rank is None:
            return {"first": first, "second": second, "count": count}
        centred = second - torch.outer(first, first) / count
        return {"first": first, "factor": _largest_axes(centred, rank), "count": count}

    def additive(self, weights: State) -> dict[str, Additive] | None:
        """The moments, unless only their largest axes are sent, which cannot be added up."""
        axes, features = weights[f"{HEAD}.whitening.axes"].shape
        shapes = {"first": (features,), "second": (features, features), "count": ()}
        if _rank(axes, features) is not None:
            return None
        norms = {"first": 1.0, "second": 1.0, "count": 0.0}  # of unit vectors
        return {
            name: Additive(torch.float64, shape, is_sum=True, symmetric=name == "second", norm=norms[name])
            for name, shape in shapes.items()
        }

    def extras_error(self, update: Update) -> str:
        """Check that the moments can be those of one unit vector per image."""
        axes, features = update.weights[f"{HEAD}.whitening.axes"].shape
        rank, double = _rank(axes, features), torch.float64
        whole: TensorSpec = (double, (features, features))
        matrix = {"second": whole} if rank is None else {"factor": (torch.float32, (rank, features))}
        expected: dict[str, TensorSpec] = {"first": (double, (features,)), "count": (double, ()), **matrix}
        if mismatch := extras_mismatch(update.extras, expected):
            return mismatch
        first, second, count = update.extras["first"], _second(update.extras), update.extras["count"]
        valid = (
            abs(float(count) / update.samples - 1) <= 1e-6  # a sum that was masked is rounded
            and float(second.trace()) <= 1.01 * update.samples  # the sum of squared lengths
            and float(first.abs().max()) <= 1.01 * update.samples
            and is_positive_semidefinite(second / count - torch.outer(first / count, first / count), 1e-5)
        )
        return "" if valid else "Its moments are not those of one unit vector per image."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The principal axes of the covariance, scaled to variance 1 if `power` is 1; axes of noise are 0."""
        axes_count = len(model[f"{HEAD}.whitening.axes"])
        counts, second = self.counts(updates), torch.zeros((), dtype=torch.float64)
        first, count = (add_up(updates, key, counts) for key in ("first", "count"))
        for update, images in zip(updates, counts, strict=True):  # one matrix at a time: they are large
            second = second + _second(update.extras) * (images / update.samples)
        mean = first / count
        variance, directions = torch.linalg.eigh(second / count - torch.outer(mean, mean))
        largest = variance.argsort(descending=True)[:axes_count]
        smallest = max(MIN_VARIANCE, MIN_RELATIVE_VARIANCE * float(variance.max()))
        scale = variance[largest].clamp_min(smallest).rsqrt() ** self.power
        scale[noise_axes(variance.clamp_min(0), self.variance)[largest]] = 0
        axes = (directions[:, largest] * scale).T.contiguous()
        weights = {"whitening.mean": mean, "whitening.axes": axes, "images": count}
        return Aggregate({f"{HEAD}.{name}": value.float() for name, value in weights.items()}, {})


def noise_axes(variance: Float[Tensor, " d"], share: float) -> Bool[Tensor, " d"]:
    """Which axes are left out because those of more variance hold this share of all variance.

    Whitening gives all axes the same weight, and so amplifies those that carry little.
    """
    larger = (variance[:, None] < variance).to(variance) @ variance
    return larger >= share * variance.sum() if share < 1 else torch.zeros_like(variance, dtype=torch.bool)


def _rank(axes: int, features: int) -> int | None:
    """Number of principal axes that represent the second moment of many features; None: send all of it."""
    return None if features <= MAX_WHOLE_MOMENT else min(features, SENT_AXES * axes)


def _largest_axes(matrix: Tensor, rank: int) -> Tensor:
    """The factor F of the best approximation FᵀF with this number of rows."""
    variance, directions = torch.linalg.eigh(matrix)
    factor: Tensor = (directions[:, -rank:] * variance[-rank:].clamp_min(0).sqrt()).T
    return factor.float().contiguous()


def _second(extras: State) -> Tensor:
    """The sum of outer products, computed from its largest axes if these were sent."""
    if "second" in extras:
        return extras["second"]
    first, factor = extras["first"], extras["factor"].double()
    return factor.T @ factor + torch.outer(first, first) / extras["count"]
