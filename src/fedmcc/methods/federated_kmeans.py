"""Federated k-means on frozen features: one exchange of centroids, no gradient, any partition."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmcc import centroids
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.networks.momentum import Network
from fedmcc.networks.prototypes import Prototypes
from fedmcc.states import State

HEAD = "online.cluster_projector"


@dataclass(frozen=True)
class FederatedKMeans:
    """k-means of all clients' features: each sends centroids of its own, the server clusters those."""

    excess: float = 2.0  # local centroids per cluster
    images_per_centroid: int = 30  # at least so many, where a client has few images
    temperature: float = 0.1  # of the soft assignments

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Give the network a head of prototypes."""
        net.online.cluster_projector = Prototypes(features, clusters, self.temperature)

    def stages(self) -> tuple[Stage, ...]:
        """One round that trains nothing."""
        return (Centroids(method=self),)


@dataclass(frozen=True, kw_only=True)
class Centroids(Stage):
    """Clients send centroids with counts; the server's weighted k-means of them is the head."""

    method: FederatedKMeans
    name: str = "centroids"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = ("online.cluster_projector",)
    frozen: Parts = ("online.encoder",)

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's features on the unit sphere, and how many images each stands for."""
        features = _features(net, batches)
        most = int(self.method.excess * len(net.online.cluster_projector.vectors.weight))
        count = max(1, min(most, len(features) // self.method.images_per_centroid))
        model = centroids.fit(features, count, seed=0)
        sizes = np.bincount(model.labels_, minlength=count)
        return {
            "centroids": torch.from_numpy(model.cluster_centers_).float(),
            "sizes": torch.from_numpy(sizes),
        }

    def combine(self, updates: Sequence[Update]) -> Aggregate:
        """k-means of all centroids, each weighing as many images as it stands for."""
        vectors = updates[0].weights[f"{HEAD}.vectors.weight"]
        rows = torch.cat([update.extras["centroids"] for update in updates]).numpy()
        sizes = torch.cat([update.extras["sizes"] for update in updates]).numpy().astype(np.float32)
        count = min(len(vectors), len(rows))  # fewer centroids than clusters leave prototypes as they were
        model = centroids.fit(centroids.unit_rows(rows), count, seed=0, weights=sizes)
        new = vectors.clone()
        new[:count] = torch.from_numpy(model.cluster_centers_)
        shares = np.bincount(model.labels_, sizes, len(vectors)) / sizes.sum()
        return Aggregate(
            {
                f"{HEAD}.vectors.weight": new,
                f"{HEAD}.marginal": torch.from_numpy(shares).float(),
                f"{HEAD}.samples": torch.tensor(int(sizes.sum())),
            },
            {},
        )


@torch.no_grad()
def _features(net: Network, batches: Iterable[Tensor]) -> np.ndarray:
    net.eval()
    features = torch.cat([net.online.encoder(batch).float().cpu() for batch in batches])
    return centroids.unit_rows(features.numpy())
