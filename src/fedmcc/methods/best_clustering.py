"""The better of two clusterings of the same features, chosen without labels (docs/decisions/0028)."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional as F

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import HEAD, Statistics, encode
from fedmcc.methods.distinct_images import distinct_images, nearest_images
from fedmcc.methods.extras import Additive, add_up, additive_mismatch
from fedmcc.methods.federated_spectral import FederatedSpectral
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.neighbours import NeighbourClustering
from fedmcc.methods.stage_of_head import StageOfHead
from fedmcc.networks.alternatives import Alternatives
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics.normalized_cut import Modularity, cost
from fedmcc.numerics.state_dicts import State

NAMES = ("spectral", "neighbours")  # of the clusterings; the first one is used in doubt
MODULARITY, BEST = "modularity", "best"  # extras: the modularity of each clustering, the chosen one

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BestClustering:
    """Spectral clustering and votes of neighbours, of which the one is used that keeps neighbours together.

    The measure is the modularity of the graph of nearest neighbours within each client, over all clients.
    """

    neighbours: int = 10  # nearest images of a client that are compared with an image
    margin: float = 0.01  # of modularity, by which the second must exceed the first
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        require_positive(self, "neighbours", "smallest", section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add both heads to the network."""
        heads = [clustering.head(features, clusters) for clustering in self._clusterings()]
        set_cluster_projector(net, Alternatives(heads))

    def stages(self) -> tuple[Stage, ...]:
        """The stages of both clusterings, then one round in which they are compared."""
        stages: list[Stage] = []
        for number, (name, clustering) in enumerate(zip(NAMES, self._clusterings(), strict=True)):
            stages += [StageOfHead.wrap(stage, number, name) for stage in clustering.stages()]
        return (*stages, Comparison(neighbours=self.neighbours, margin=self.margin))

    def _clusterings(self) -> tuple[FederatedSpectral, NeighbourClustering]:
        return FederatedSpectral(smallest=self.smallest), NeighbourClustering(smallest=self.smallest)


@dataclass(frozen=True, kw_only=True)
class Comparison(Statistics):
    """Clients count for each head how often images of two clusters are neighbours; the server chooses."""

    neighbours: int
    margin: float
    name: str = "comparison"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """For each head, a matrix of clusters that sums to the number of images."""
        features = torch.cat([*encode(net, batches)])
        distinct = distinct_images(net, len(features))
        table = nearest_images(F.normalize(features, dim=1), distinct, self.neighbours)
        edges = []
        for head in net.online.cluster_projector.heads:
            assigned = head(features)
            own = F.one_hot(assigned.argmax(dim=1), assigned.shape[1]).cpu().double()
            near = own[table[:, 1:].cpu()].mean(dim=1) if table.shape[1] > 1 else own
            edges.append(own.T @ near)
        return {"edges": torch.stack(edges)}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The matrices: of each image, numbers that sum to 1 for each head."""
        clusters = next(value for name, value in weights.items() if name.endswith(".groups")).shape[1]
        shape = (len(NAMES), clusters, clusters)
        return {"edges": Additive(torch.float64, shape, is_sum=True, norm=math.sqrt(len(NAMES)))}

    def extras_error(self, update: Update) -> str:
        """Check that each image counts once for each head."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        edges = update.extras["edges"]
        whole = (edges.sum(dim=(1, 2)) / update.samples - 1).abs().max() <= 1e-6
        return "" if whole and (edges >= -1e-6).all() else "Its neighbours are not counted once per image."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Use the first head, unless another one exceeds its modularity by the margin."""
        edges = add_up(updates, "edges", self.counts(updates)).clamp_min(0)  # noise may be negative
        found = torch.tensor([modularity(one.numpy()) for one in edges], dtype=torch.float64)
        best = found.argmax() if found.max() > found[0] + self.margin else torch.tensor(0)
        named = ", ".join(f"{name} {value:.3f}" for name, value in zip(NAMES, found.tolist(), strict=True))
        log.info("Modularity of neighbours: %s. The clusters of %s are used.", named, NAMES[int(best)])
        return Aggregate({f"{HEAD}.best": best}, {MODULARITY: found, BEST: best})


def modularity(edges: Float64[np.ndarray, "k k"]) -> float:
    """The modularity of a clustering, from the number of edges between any two of its clusters."""
    clusters = np.arange(len(edges))
    return -cost((edges + edges.T) / 2, clusters, len(edges), Modularity())
