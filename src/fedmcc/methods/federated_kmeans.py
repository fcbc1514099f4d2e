"""Federated k-means on frozen features: two exchanges of small statistics, no gradient, any partition."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage, refuse_unless_positive, unlike
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

HEAD = "online.cluster_projector"
FLOOR = 1e-6  # of the largest variance: an axis without any is not blown up
LOCAL_RESTARTS = 3  # of a client's k-means, whose many centroids any start spreads well


@dataclass(frozen=True)
class FederatedKMeans:
    """k-means of all clients' features: each sends centroids of its own, the server clusters those.

    Before that the features are whitened on their principal axes, from moments that the clients add up:
    without it, directions in which all images of a client agree drown those that tell classes apart.
    A centroid is a mean of features, perhaps of a single image: `smallest` sets how many it must stand for.
    """

    axes: float = 2.0  # whitened axes per cluster; 0: features as they are
    excess: float = 2.0  # local centroids per prototype
    images_per_centroid: int = 30  # so many, where a client has few; but as many centroids as clusters
    temperature: float = 0.1  # of the soft assignments
    smallest: int = 1  # images that a centroid must stand for to leave its client

    def __post_init__(self) -> None:
        names = ("excess", "images_per_centroid", "temperature", "smallest")
        refuse_unless_positive(self, *names, section="clustering")
        if not 0 <= self.axes < math.inf:
            raise InputError(f"clustering.axes is {self.axes}: give 0 or more.")

    def head(self, features: int, clusters: int) -> Prototypes:
        """A head of prototypes."""
        return self._head(features, clusters, clusters)

    def _head(self, features: int, clusters: int, count: int) -> Prototypes:
        axes = min(features, round(self.axes * clusters)) or features
        return Prototypes(features, clusters, count, axes, self.temperature)

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Give the network a head of prototypes."""
        set_cluster_projector(net, self.head(features, clusters))

    def stages(self) -> tuple[Stage, ...]:
        """One or two rounds that train nothing."""
        return (Whitening(), Centroids(method=self)) if self.axes else (Centroids(method=self),)


@dataclass(frozen=True, kw_only=True)
class Whitening(Stage):
    """Clients send the moments of their features; the principal axes of all of them go into the head."""

    name: str = "whitening"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (f"{HEAD}.whitening",)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Sum of the features on the unit sphere, and of their outer products."""
        first = second = count = torch.zeros((), dtype=torch.float64)
        for features in features_of(net, batches):
            unit = F.normalize(features.cpu().double(), dim=1)
            first, second, count = first + unit.sum(dim=0), second + unit.T @ unit, count + len(unit)
        return {"first": first, "second": second, "count": count}

    def extras_error(self, update: Update) -> str:
        """Moments of as many vectors as it has images, none longer than 1."""
        features = len(update.weights[f"{HEAD}.whitening.mean"])
        shapes = {"first": (features,), "second": (features, features), "count": ()}
        if wrong := unlike(update.extras, {name: (torch.float64, shape) for name, shape in shapes.items()}):
            return wrong
        count, trace = float(update.extras["count"]), float(update.extras["second"].trace())
        if count != update.samples or trace > 1.01 * count:  # the trace is the sum of squared lengths
            return "Its moments are not those of its images' features on the unit sphere."
        return ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The eigenvectors of the covariance with the largest variance, scaled to variance 1."""
        kept = model[f"{HEAD}.whitening.axes"]
        first, second, count = (
            torch.stack([update.extras[key] for update in updates]).sum(dim=0)
            for key in ("first", "second", "count")
        )
        mean = first / count
        variance, directions = torch.linalg.eigh(second / count - torch.outer(mean, mean))
        largest = variance.argsort(descending=True)[: len(kept)]
        scale = variance[largest].clamp_min(FLOOR * float(variance.max())).rsqrt()
        axes = (directions[:, largest] * scale).T.float().contiguous()
        return Aggregate({f"{HEAD}.whitening.mean": mean.float(), f"{HEAD}.whitening.axes": axes}, {})


@dataclass(frozen=True, kw_only=True)
class Centroids(Stage):
    """Clients send centroids with counts; the server's weighted k-means of them are the prototypes."""

    method: FederatedKMeans
    seed: int = 0  # of the first centres
    name: str = "centroids"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's features among the prototypes, and how many images each stands for."""
        head = net.online.cluster_projector
        places = torch.cat([head.whitening(features).cpu() for features in features_of(net, batches)]).numpy()
        prototypes, clusters = head.groups.shape
        few = max(len(places) // self.method.images_per_centroid, min(clusters, len(places)))
        count = min(int(self.method.excess * prototypes), few)
        model = kmeans.fit(places, count, self.seed, restarts=LOCAL_RESTARTS)
        found, sizes = kmeans.merge_small_clusters(places, model, self.method.smallest)
        return {"centroids": torch.from_numpy(found).float(), "sizes": torch.from_numpy(sizes)}

    def extras_error(self, update: Update) -> str:
        """Centroids inside the unit sphere, with the numbers of images they stand for."""
        axes = update.weights[f"{HEAD}.vectors.weight"].shape[1]
        looks = {"centroids": (torch.float32, (None, axes)), "sizes": (torch.int64, (None,))}
        if wrong := unlike(update.extras, looks):
            return wrong
        found, sizes = update.extras["centroids"], update.extras["sizes"]
        if len(found) != len(sizes) or (sizes < 0).any() or int(sizes.sum()) != update.samples:
            return "Its centroids do not stand for as many images as it has."
        return "Its centroids lie outside the unit sphere." if (found.norm(dim=1) > 1.01).any() else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """k-means of all centroids, each weighing as many images as it stands for."""
        groups, vectors = model[f"{HEAD}.groups"], model[f"{HEAD}.vectors.weight"]
        rows = torch.cat([update.extras["centroids"] for update in updates]).numpy()
        sizes = torch.cat([update.extras["sizes"] for update in updates]).numpy().astype(np.float32)
        count = min(len(vectors), len(rows))
        fitted = kmeans.fit(kmeans.unit_rows(rows), count, self.seed, weights=sizes)
        found = torch.from_numpy(fitted.cluster_centers_).to(vectors)
        shares = torch.from_numpy(np.bincount(fitted.labels_, sizes, len(vectors)) / sizes.sum()).to(groups)
        found = found[torch.arange(len(vectors)) % count]  # too few: some twice
        return Aggregate({f"{HEAD}.vectors.weight": found, f"{HEAD}.marginal": shares @ groups}, {})


def features_of(net: Network, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """What the online encoder, in inference mode, makes of the batches."""
    net.eval()
    for batch in batches:
        yield net.online.encoder(batch).float()
