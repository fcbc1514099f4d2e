"""Federated clustering by matrix factorisation (Wang and Chang, IEEE TSP 2022), with shared gradients.

X ≈ W H, where the columns of H ≥ 0 have few non-zero entries. W is shared; H stays at the clients. The
gradient of W needs only the sums of H Hᵀ and X Hᵀ, which clients send, so that the server can take any number
of exact steps and the result does not depend on how the images are distributed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.centroids import (
    HEAD,
    SMALLEST_CLUSTER,
    VECTORS,
    Statistics,
    encode,
    images_needed,
    longest,
)
from fedmcc.methods.distinct_images import are_first
from fedmcc.methods.extras import Additive, add_up, additive_mismatch
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.lloyd import Seeds
from fedmcc.networks.factors import Factors
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics.matrices import is_positive_semidefinite
from fedmcc.numerics.state_dicts import State

PENALTIES = f"{HEAD}.penalties"
NU = 1e-8  # relative to the largest eigenvalue of WᵀW


@dataclass(frozen=True)
class MatrixFactorisation:
    """Federated matrix factorisation: features are combinations of a few shared vectors, the clusters."""

    rounds: int = 30  # R
    client_steps: int = 20  # Q1, projected gradient steps in H
    server_steps: int = 10  # Q2, gradient steps in W
    sparsity: float = 0.01  # rho, relative to the largest eigenvalue of the first WᵀW
    excess: float = 2.0  # first centroids of a client per cluster
    smallest: int | None = None  # images of a centroid or sum; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        names = ("rounds", "client_steps", "server_steps", "sparsity", "excess", "smallest")
        require_positive(self, *names, section="clustering")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of factors to the network."""
        set_cluster_projector(net, Factors(features, clusters, self.client_steps))

    def stages(self) -> tuple[Stage, ...]:
        """First factors, in one round, and the factorisation; nothing is trained."""
        steps, smallest = self.server_steps, images_needed(self.smallest)
        first = FirstFactors(excess=self.excess, smallest=smallest, sparsity=self.sparsity)
        return (first, Factorisation(rounds=self.rounds, server_steps=steps, smallest=smallest))


@dataclass(frozen=True, kw_only=True)
class FirstFactors(Seeds):
    """The first factors are the centres of k-means; the penalties are relative to their size."""

    sparsity: float
    shared: Parts = (HEAD,)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The centres, and both penalties."""
        vectors = super().combine(updates, model).weights[VECTORS]
        largest = torch.linalg.eigvalsh(vectors.double() @ vectors.double().T)[-1]
        penalties = (largest * torch.tensor([self.sparsity, NU])).to(model[PENALTIES])
        return Aggregate({VECTORS: vectors, PENALTIES: penalties}, {})


@dataclass(frozen=True, kw_only=True)
class Factorisation(Statistics):
    """Clients improve H and send the sums of H Hᵀ and X Hᵀ; the server improves W."""

    server_steps: int
    smallest: int = SMALLEST_CLUSTER  # images that must use a factor; others are left out of its sums
    name: str = "factorisation"

    def first_notes(self, net: Any, count: int) -> State:
        """H = 0; H stays at the client."""
        return {"h": torch.zeros(count, len(net.online.cluster_projector.marginal), dtype=torch.float64)}

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sums over this client's images, and the sums of H by cluster, in double precision."""
        head, notes = net.online.cluster_projector, net.notes
        points = torch.cat([features.double() for features in encode(net, batches)])
        h = head.combinations(points, notes["h"].to(points))
        net.notes = {"h": h}
        first = are_first(net, 0, len(h)).to(h.device)
        h = h * ((h[first] > 0).sum(dim=0) >= self.smallest)
        shares = h / h.sum(dim=1, keepdim=True).clamp_min(torch.finfo(h.dtype).tiny)
        return {"hh": (h.T @ h).cpu(), "hx": (h.T @ points).cpu(), "shares": shares.sum(dim=0).cpu()}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The sums over the images."""
        clusters, features = weights[VECTORS].shape
        shapes = {"hh": (clusters, clusters), "hx": (clusters, features), "shares": (clusters,)}
        return {name: Additive(torch.float64, shape, is_sum=True) for name, shape in shapes.items()}

    def extras_error(self, update: Update) -> str:
        """Check that some H ≥ 0 and features of possible lengths give these sums."""
        features = update.weights[VECTORS].shape[1]
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        hh, hx, shares = (update.extras[name] for name in ("hh", "hx", "shares"))
        most = (update.samples * hh.diagonal().clamp_min(0)).sqrt() * longest(features, unit=False)
        scale = float(hh.diagonal().max().clamp_min(torch.finfo(hh.dtype).tiny))
        valid = (
            bool((hh >= 0).all() and (shares >= 0).all())
            and float(shares.sum()) <= 1.01 * update.samples
            and is_positive_semidefinite(hh / scale, 1e-5)
            and bool((hx.norm(dim=1) <= 1.01 * most).all())  # by the inequality of Cauchy and Schwarz
        )
        return "" if valid else "Its sums are not those of non-negative combinations of its images."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Gradient steps in W with the rate that never raises the objective."""
        counts = self.counts(updates)
        hh, hx, shares = (add_up(updates, key, counts) for key in ("hh", "hx", "shares"))
        vectors = model[VECTORS].double()
        rate = 1 / torch.linalg.eigvalsh(hh)[-1].clamp_min(torch.finfo(hh.dtype).tiny)
        for _ in range(self.server_steps):
            vectors = vectors - rate * (hh @ vectors - hx)
        marginal = (shares / shares.sum().clamp_min(1e-12)).to(model[f"{HEAD}.marginal"])
        return Aggregate({VECTORS: vectors.to(model[VECTORS]), f"{HEAD}.marginal": marginal}, {})
