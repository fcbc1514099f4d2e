"""Federated spectral clustering: several prototypes per cluster, merged by how often images share them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage, require_positive
from fedmcc.methods.centroids import HEAD, Statistics, encode
from fedmcc.methods.extras import add_up, affinity_error
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.normalized_cut import cut
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class FederatedSpectral(FederatedKMeans):
    """Federated k-means with several prototypes per cluster, merged into clusters by a normalised cut.

    A cluster is a group of prototypes, so that it need not be convex, as in k-means. A client sends an
    affinity matrix of the prototypes, and the server cuts the sum over all clients.
    """

    axes: float = 3.0  # whitened axes per cluster; 0: no whitening
    excess: float = 1.0  # local centroids per prototype
    images_per_centroid: int = 10  # at least, unless that gives fewer centroids than clusters
    temperature: float = 0.05  # of the soft assignments
    prototypes: float = 10.0  # per cluster
    balance: float = 1.0  # weight of equal cluster sizes in the choice of a cut; 0: sizes are ignored

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "prototypes", section="clustering")

    def head(self, features: int, clusters: int) -> Prototypes:
        """A head with several prototypes per cluster."""
        return self._head(features, clusters, max(clusters, round(self.prototypes * clusters)))

    def stages(self) -> tuple[Stage, ...]:
        """The stages of federated k-means, then merging: one round each, without training."""
        *before, centroids = super().stages()
        unfinished = replace(centroids, shared=(f"{HEAD}.vectors",), frozen=("online.encoder", HEAD))
        return (*before, unfinished, Merging(method=self))


@dataclass(frozen=True, kw_only=True)
class Merging(Statistics):
    """Clients send the affinities of the prototypes on their images; the server groups the prototypes."""

    method: FederatedSpectral
    name: str = "merging"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum over images of p pᵀ, where p is the soft assignment to the prototypes."""
        head = net.online.cluster_projector
        count = len(head.groups)
        affinity = torch.zeros(count, count, dtype=torch.float64)
        for features in encode(net, batches):
            p = head.assign_to_prototypes(features).cpu().double()
            affinity += p.T @ p
        return {"affinity": affinity}

    def extras_error(self, update: Update) -> str:
        """Check that the affinities can be those of one soft assignment per image."""
        return affinity_error(update, len(update.weights[f"{HEAD}.groups"]))

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Group the prototypes by the normalised cut of the summed affinities."""
        affinity = add_up(updates, "affinity", self.counts(updates))
        clusters = model[f"{HEAD}.groups"].shape[1]
        groups = torch.eye(clusters)[
            torch.from_numpy(cut(affinity.numpy(), clusters, self.method.balance)).long()
        ]
        sizes = affinity.sum(dim=1).float() @ groups
        return Aggregate({f"{HEAD}.groups": groups, f"{HEAD}.marginal": sizes / sizes.sum()}, {})
