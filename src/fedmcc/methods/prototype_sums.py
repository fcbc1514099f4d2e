"""Prototypes from sums alone, which secure aggregation can hide and noise can cover (docs/privacy.md).

From random directions, each prototype moves to the mean of the whitened features, weighted by their soft
assignments to it, over the images of all clients.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts
from fedmcc.methods.centroids import HEAD, MAX_UNIT_LENGTH, SMALLEST_CLUSTER, VECTORS, Statistics, encode
from fedmcc.methods.distinct_images import are_first
from fedmcc.methods.extras import Additive, add_up, additive_mismatch
from fedmcc.numerics.state_dicts import State

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrototypeSums(Statistics):
    """Clients send Σ p xᵀ, where p are the soft assignments of the whitened features x to the prototypes.

    A client leaves out prototypes to which fewer than `smallest` of its images belong; with 1 it sends all.
    """

    smallest: int = SMALLEST_CLUSTER
    name: str = "prototypes"
    shared: Parts = (f"{HEAD}.vectors",)
    frozen: Parts = ("online.encoder", HEAD)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sums of this client's images, in double precision until they are sent."""
        head = net.online.cluster_projector
        sums = torch.zeros(head.vectors.weight.shape, dtype=torch.float64)
        images = torch.zeros(len(sums), dtype=torch.float64)  # different ones of each prototype
        done = 0
        for features in encode(net, batches):
            whitened = head.whitening(features)
            p = head.assign_points(whitened).cpu().double()
            images += p[are_first(net, done, len(p))].sum(dim=0)
            done += len(p)
            sums += p.T @ whitened.cpu().double()
        sent = images >= self.smallest if self.smallest > 1 else torch.ones_like(images, dtype=torch.bool)
        return {"sums": torch.where(sent[:, None], sums, 0).float()}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The sums, of p xᵀ for each image, which has a norm of 1 at most."""
        return {"sums": Additive(torch.float32, tuple(weights[VECTORS].shape), is_sum=True, norm=1.0)}

    def extras_error(self, update: Update) -> str:
        """Check that the sums are not longer than those of the client's images can be."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        length = float(update.extras["sums"].double().norm(dim=1).sum())
        within = length <= MAX_UNIT_LENGTH * update.samples
        return "" if within else "Its sums are longer than those of its images can be."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Move each prototype to the direction of its sum; one without images stays."""
        sums = add_up(updates, "sums", self.counts(updates))
        moved = sums.norm(dim=1) > 0
        if moved.double().mean() < 0.5:
            log.warning(
                "%d of %d prototypes have too few images at every client: lower prototypes or smallest.",
                int((~moved).sum()),
                len(moved),
            )
        vectors = torch.where(moved[:, None], F.normalize(sums, dim=1).to(model[VECTORS]), model[VECTORS])
        return Aggregate({VECTORS: vectors}, {})
