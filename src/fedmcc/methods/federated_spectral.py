"""Federated spectral clustering: many prototypes for each cluster, merged by how images share them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage, refuse_unless_positive, unlike
from fedmcc.methods.federated_kmeans import HEAD, FederatedKMeans, features_of
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.normalized_cut import cut
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class FederatedSpectral(FederatedKMeans):
    """Federated k-means to many prototypes, then the normalised cut of those that images share.

    Clusters need not be round, as k-means wants them: a cluster is a group of prototypes. What a client adds
    is a matrix of prototypes by prototypes, whose sum over clients says which belong together.
    """

    axes: float = 3.0  # whitened axes per cluster; 0: features as they are
    excess: float = 1.0  # local centroids per prototype
    images_per_centroid: int = 10  # so many, where a client has few; but as many centroids as clusters
    temperature: float = 0.05  # of the soft assignments
    prototypes: float = 10.0  # per cluster
    balance: float = 1.0  # weight of equal cluster sizes in the choice of a cut; 0: sizes do not matter

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_positive(self, "prototypes", section="clustering")

    def head(self, features: int, clusters: int) -> Prototypes:
        """A head of prototypes, several for each cluster."""
        return self._head(features, clusters, max(clusters, round(self.prototypes * clusters)))

    def stages(self) -> tuple[Stage, ...]:
        """Two or three rounds that train nothing."""
        *before, centroids = super().stages()
        unfinished = replace(centroids, shared=(f"{HEAD}.vectors",), frozen=("online.encoder", HEAD))
        return (*before, unfinished, Merging(method=self))


@dataclass(frozen=True, kw_only=True)
class Merging(Stage):
    """Clients send how much their images share each pair of prototypes; the server groups the prototypes."""

    method: FederatedSpectral
    name: str = "merging"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder",)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum over images of p pᵀ, where p is the soft assignment to the prototypes."""
        head = net.online.cluster_projector
        count = len(head.groups)
        shared = torch.zeros(count, count, dtype=torch.float64)
        for features in features_of(net, batches):
            p = head.similar(features).cpu().double()
            shared += p.T @ p
        return {"affinity": shared}

    def extras_error(self, update: Update) -> str:
        """Affinities of as many soft assignments as it has images."""
        count = len(update.weights[f"{HEAD}.groups"])
        if wrong := unlike(update.extras, {"affinity": (torch.float64, (count, count))}):
            return wrong
        affinity = update.extras["affinity"]
        off = abs(float(affinity.sum()) - update.samples) > 1e-2 * update.samples
        if off or (affinity < 0).any() or not torch.allclose(affinity, affinity.T):
            return "Its affinities are not those of soft assignments of its images."
        return ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The normalised cut of the sum."""
        affinity = torch.stack([update.extras["affinity"] for update in updates]).sum(dim=0)
        clusters = model[f"{HEAD}.groups"].shape[1]
        groups = torch.eye(clusters)[
            torch.from_numpy(cut(affinity.numpy(), clusters, self.method.balance)).long()
        ]
        sizes = affinity.sum(dim=1).float() @ groups
        return Aggregate({f"{HEAD}.groups": groups, f"{HEAD}.marginal": sizes / sizes.sum()}, {})
