"""ProPos: prototype scattering and positive sampling (Huang et al., TPAMI 2023), NCC in the paper's table."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.losses import cosine_distance
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import ROW, VIEW, Overview, Sights
from fedmcc.networks.momentum import PredictorPair
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics import kmeans
from fedmcc.numerics.state_dicts import State

RESTARTS = 3  # of the k-means of an epoch


class ScatteringPair(PredictorPair):
    """A pair with a predictor that knows the number of clusters."""

    clusters: int


@dataclass(frozen=True)
class ProPos(FedBYOL):
    """BYOL with noisy positives whose clusters, from k-means in every epoch, are kept apart."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Huang et al., TPAMI",
        2023,
        "a clustering, a k-means per epoch",
        cost=1.0,
    )

    epochs: int = 1  # E
    hidden: int = 512  # width of the projector and the predictor
    projections: int = 128
    weight: float = 0.1  # lambda, of the scattering
    temperature: float = 0.5  # tau
    noise: float = 0.001  # sigma
    warm_up: float = 0.3  # fraction of the stage without clusters and noise

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature")
        for name in ("weight", "noise", "warm_up"):
            require_fraction(self, name)

    def build(self, encoder: nn.Module, features: int, clusters: int) -> ScatteringPair:
        """BYOL's network."""
        pair = super().build(encoder, features, clusters)
        net = ScatteringPair(pair.online, pair.predictor)
        net.clusters = clusters
        return net

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Alignment(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """Of both views: predictions, projections, the target's projections; the cluster, and if it counts."""

    p_a: Tensor
    p_b: Tensor
    q_a: Tensor
    q_b: Tensor
    k_a: Tensor
    k_b: Tensor
    cluster: Tensor
    on: Tensor


@dataclass(frozen=True, kw_only=True)
class Alignment(Stage):
    """Predict the target's projection of the other view from a noisy one, and keep clusters apart."""

    method: ProPos
    name: str = "alignment"
    trained: Parts = ("online", "predictor")
    shared: Parts = ("online", "predictor")
    sees: Sights = (VIEW, VIEW, ROW)

    def first_notes(self, net: ScatteringPair, count: int) -> State:
        """Clusters in turn that do not count, and no noise."""
        return {
            "cluster": torch.eye(net.clusters)[torch.arange(count) % net.clusters],
            "on": torch.zeros(()),
            "noise": torch.zeros(count, self.method.projections),
        }

    def prepare(self, net: ScatteringPair, overview: Overview) -> None:
        """After the warm-up: k-means of the target's projections on the sphere, and new noise."""
        if overview.passed < self.method.warm_up:
            return
        z = overview.features(lambda batch: net.target.instance(net.target.encoder(batch)))
        rows, draw = kmeans.unit_rows(z.cpu().numpy()), torch.Generator().manual_seed(overview.seed)
        count = min(net.clusters, len(rows))
        labels = kmeans.fit(rows, count, overview.seed, restarts=RESTARTS).labels_
        net.notes = {
            "cluster": torch.eye(net.clusters)[torch.from_numpy(labels).long()].to(z),
            "on": torch.ones((), device=z.device),
            "noise": self.method.noise * torch.randn(z.shape, generator=draw).to(z),
        }

    def represent(self, net: ScatteringPair, a: Tensor, b: Tensor, rows: Tensor) -> Outputs:
        """Project both views; the noise of the second view is the negative of the first."""
        notes, n = net.notes, len(rows)
        k_a, k_b = without_gradient(lambda: tuple(_project(net.target, view) for view in (a, b)))
        q_a, q_b, noise = _project(net.online, a), _project(net.online, b), notes["noise"][rows]
        p_a, p_b = net.predictor(q_a + noise), net.predictor(q_b - noise)
        return Outputs(p_a, p_b, q_a, q_b, k_a, k_b, notes["cluster"][rows], notes["on"].expand(n))

    def loss(self, outputs: Outputs) -> Tensor:
        """Mean alignment of both directions, plus the weighted scattering once there are clusters."""
        p_a, p_b, q_a, q_b, k_a, k_b, cluster, on = outputs
        align = (cosine_distance(p_a, k_b) + cosine_distance(p_b, k_a)) / 2
        temperature = self.method.temperature
        scatter = (
            scattering(q_a, k_b, cluster, temperature) + scattering(q_b, k_a, cluster, temperature)
        ) / 2
        return align + self.method.weight * on[0] * scatter

    def after_step(self, net: ScatteringPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(self.method.momentum)

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Adopt the global network; the target stays local."""
        self.method.receive(net, task, memory)


def scattering(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], cluster: Float[Tensor, "n clusters"], temperature: float
) -> Float[Tensor, ""]:
    """Cross-entropy of finding a cluster's centre in k among it and the centres of the other clusters in q.

    Clusters without an image in the batch are masked, so that shapes do not depend on the data.
    """
    own, other = (F.normalize(cluster.T @ F.normalize(rows, dim=1), dim=1) for rows in (q, k))
    present = cluster.sum(dim=0) > 0
    positive = (own * other).sum(dim=1) / temperature
    apart = torch.eye(len(own), dtype=torch.bool, device=q.device)
    logits = torch.where(apart, positive, own @ own.T / temperature)
    logits = logits.masked_fill(~(present | apart), -torch.inf)
    losses = logits.logsumexp(dim=1) - positive
    return torch.where(present, losses, 0).sum() / present.sum()


def _project(branch: Any, view: Tensor) -> Tensor:
    projections: Tensor = branch.instance(branch.encoder(view))
    return projections
