"""Federated k-means on frozen features: two rounds that exchange small statistics, without gradients."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.centroids import (
    HEAD,
    LOCAL_RESTARTS,
    VECTORS,
    Statistics,
    centroids_error,
    encode,
    gathered,
    images_needed,
    local_centroids,
    repeated,
    sent,
)
from fedmcc.methods.distinct_images import DistinctPoints, distinct_images
from fedmcc.methods.extras import Additive, TensorSpec, add_up, extras_mismatch
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.networks.prototypes import Member, Prototypes, rows_of
from fedmcc.numerics import kmeans
from fedmcc.numerics.matrices import is_positive_semidefinite
from fedmcc.numerics.state_dicts import State

log = logging.getLogger(__name__)

MIN_RELATIVE_VARIANCE = 1e-6  # of the largest variance, so that whitening does not amplify a constant axis
MIN_VARIANCE = 1e-12  # so that whitening constant features gives finite numbers
MAX_WHOLE_MOMENT = 512  # features; of more, clients send the largest principal axes of the second moment
FEW_CENTROIDS = (
    "All clients together have sent %d centroids for %d clusters: some clusters stay empty. Give clients "
    "more images, or let centroids represent fewer (the option smallest; docs/privacy.md has the cost)."
)
SENT_AXES = 2  # principal axes that a client then sends, per whitened axis


@dataclass(frozen=True)
class FederatedKMeans:
    """k-means on all clients' features: clients send centroids, and the server clusters the centroids.

    The features are first whitened on their principal axes, computed from the sum of the clients' moments.
    Otherwise, directions that all images of a client share dominate those that separate the classes. A
    centroid of one image would be its features: `smallest` sets how many images it must represent.
    """

    axes: float = 2.0  # whitened axes per cluster; 0: no whitening
    whiten: float = 1.0  # 1: variance 1 on all axes; 0: principal axes with their variances
    variance: float = 1.0  # share that the whitened axes hold at most; axes beyond it are left out as noise
    excess: float = 2.0  # local centroids per prototype
    images_per_centroid: int = 30  # at least, unless that gives fewer centroids than clusters
    temperature: float = 0.1  # of the soft assignments
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        names = ("excess", "images_per_centroid", "temperature", "smallest")
        require_positive(self, *names, section="clustering")
        if not 0 <= self.axes < math.inf:
            raise InputError(f"clustering.axes is {self.axes}: give 0 or more.")
        require_fraction(self, "whiten", section="clustering")
        require_share(self.variance, "clustering")

    def head(self, features: int, clusters: int) -> Prototypes:
        """A head of prototypes for this number of features and clusters."""
        return Prototypes(features, clusters, self.head_members(features, clusters), self.temperature)

    def head_members(self, features: int, clusters: int) -> tuple[Member, ...]:
        """One set of prototypes, one per cluster."""
        return (Member(clusters, min(features, round(self.axes * clusters)) or features),)

    @property
    def sets(self) -> int:
        """The number of sets of prototypes."""
        return 1

    def members_of(self, weights: State) -> tuple[Member, ...]:
        """The sets of prototypes of a head with these weights."""
        features, clusters = len(weights[f"{HEAD}.whitening.mean"]), weights[f"{HEAD}.groups"].shape[1]
        return self.head_members(features, clusters)

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of prototypes to the network."""
        set_cluster_projector(net, self.head(features, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """Whitening, unless `axes` is 0, and centroids: one round each, without training."""
        centroids = Centroids(method=self)
        whitening = Whitening(power=self.whiten, variance=self.variance)
        return (whitening, centroids) if self.axes else (centroids,)


def require_share(variance: float, section: str) -> None:
    """Raise unless the share of the variance on the whitened axes is above 0 and at most 1."""
    if not 0 < variance <= 1:
        raise InputError(f"{section}.variance is {variance}: give a number above 0, at most 1.")


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
        axes = (directions[:, largest] * scale).T.float().contiguous()
        return Aggregate({f"{HEAD}.whitening.mean": mean.float(), f"{HEAD}.whitening.axes": axes}, {})


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


@dataclass(frozen=True, kw_only=True)
class Centroids(Statistics):
    """Clients send centroids and their sizes; the server's weighted k-means gives the prototypes."""

    method: FederatedKMeans
    seed: int = 0  # of the initial centres
    name: str = "centroids"

    @property
    def smallest(self) -> int:
        """Number of images that a centroid must represent to be sent."""
        return images_needed(self.method.smallest)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """For each member of the head, centroids of this client's whitened features and their sizes."""
        head = net.online.cluster_projector
        whitened = torch.cat([head.whitening(features).cpu() for features in encode(net, batches)])
        first, copies, _ = distinct_images(net, len(whitened))
        whitened, images = whitened[first], len(first)
        limit = max(images // self.method.images_per_centroid, min(head.groups.shape[1], images))
        restarts = max(1, LOCAL_RESTARTS // len(head.members))
        found: State = {}
        for number, member in enumerate(head.members):
            points = DistinctPoints(member.points(whitened).numpy(), copies.numpy())
            count = min(int(self.method.excess * member.count), limit)
            own, sizes = local_centroids(points, count, self.seed + number, self.smallest, restarts)
            unused = whitened.shape[1] - member.axes
            found |= sent((np.pad(own, ((0, 0), (0, unused))), sizes), number)
        return found

    def extras_error(self, update: Update) -> str:
        """Check that there are no more centroids than asked for, in the unit ball, and check their sizes."""
        prototypes, axes = update.weights[VECTORS].shape
        limits = [(int(self.method.excess * prototypes), axes)] * self.method.sets
        return centroids_error(update, limits, self.smallest)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, weighted by their numbers of images, for each member of the head."""
        groups, vectors = model[f"{HEAD}.groups"], torch.zeros_like(model[VECTORS])
        members = self.method.members_of(model)
        shares = torch.zeros(len(vectors), dtype=torch.float64)
        found = sum(len(update.extras["sizes"]) for update in updates)
        if found < groups.shape[1] and not getattr(self.method, "choose", False):
            log.warning(FEW_CENTROIDS, found, groups.shape[1])
        for number, (own, member) in enumerate(zip(rows_of(members), members, strict=True)):
            rows, sizes = gathered(updates, self.counts(updates), number)
            count, restarts = min(member.count, len(rows)), max(1, kmeans.RESTARTS // len(members))
            points = kmeans.unit_rows(rows[:, : member.axes])
            fitted = kmeans.fit_weighted(points, count, self.seed + number, sizes, restarts)
            vectors[own, : member.axes] = repeated(torch.from_numpy(fitted.centres).to(vectors), member.count)
            shares[own] = torch.from_numpy(np.bincount(fitted.labels, sizes, member.count) / sizes.sum())
        marginal = (shares / len(members)).to(groups) @ groups
        return Aggregate({VECTORS: vectors, f"{HEAD}.marginal": marginal}, {})
