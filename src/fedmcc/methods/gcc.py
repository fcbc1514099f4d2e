"""GCC: graph contrastive clustering (Zhong et al., ICCV 2021).

The graph comes from projections of the images themselves, and positive pairs stay in the denominator (D1).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.fedsimclr import FedSimCLR, Representation
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.inputs import PARTNER, PARTNER_ROW, PARTNERS, ROW, VIEW, Overview, Sights
from fedmcc.methods.pica import imbalance, partition_uncertainty
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.numerics.neighbours import degrees, nearest
from fedmcc.numerics.state_dicts import State

PARTNERS_SEEN = 2


@dataclass(frozen=True)
class GCC(FedSimCLR):
    """Graph contrastive clustering: SimCLR, then neighbours attract each other and share a cluster."""

    about: ClassVar[About] = About(
        "centralized deep clustering", "Zhong et al., ICCV", 2021, "stored neighbours of each image", cost=1.1
    )

    epochs: int = 1  # E, in both stages
    temperature: float = 0.5  # of SimCLR
    hidden: int = 512  # width of the projector
    projections: int = 128
    graph_rounds: int = 15  # rounds of training with the graph
    neighbours: int = 5  # k
    interval: int = 5  # epochs between two graphs
    graph_temperature: float = 0.1  # tau, of the contrast with neighbours
    graph_weight: float = 2.0  # of the contrast with neighbours
    balance: float = 2.0  # weight of equal cluster sizes

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "graph_rounds", "neighbours", "interval")
        require_positive(self, "graph_temperature", "graph_weight", "balance")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """SimCLR's branch with a linear head."""
        net = super().build(encoder, features, clusters)
        set_cluster_projector(net, nn.Sequential(nn.Linear(features, clusters), nn.Softmax(dim=1)))
        return net

    def stages(self) -> tuple[Stage, ...]:
        """SimCLR, and training with the graph."""
        parts: Parts = ("online.encoder", "online.instance_projector")
        simclr = Representation(
            rounds=self.rounds, epochs=self.epochs, method=self, trained=parts, shared=parts
        )
        return (simclr, Graph(rounds=self.graph_rounds, epochs=self.epochs, method=self))


class Outputs(NamedTuple):
    """Unit projections of two views, logits of the positives, assignments, and the numbers of neighbours."""

    z_a: Tensor
    z_b: Tensor
    positives: Tensor
    y: Tensor
    partner_y: Tensor
    rows: Tensor
    neighbours: Tensor


@dataclass(frozen=True, kw_only=True)
class Graph(Stage):
    """Contrast images and clusters, with the neighbours in the client's graph as further positives."""

    method: GCC
    name: str = "graph"
    trained: Parts = ("online",)
    shared: Parts = ("online",)
    sees: Sights = (VIEW, VIEW, *PARTNERS_SEEN * (PARTNER,), ROW, PARTNER_ROW)

    def first_notes(self, net: Network, count: int) -> State:
        """Each image as its own neighbour."""
        return _notes(torch.arange(count)[:, None])

    def prepare(self, net: Network, overview: Overview) -> None:
        """Find the neighbours of each image by the cosine of projections, every few epochs."""
        if overview.epoch % self.method.interval == 0:
            z = overview.features(lambda batch: _project(net, net.online.encoder(batch)))
            if len(z) > 1:
                net.notes = _notes(nearest(z, self.method.neighbours)[0])

    def represent(self, net: Network, a: Tensor, b: Tensor, *seen: Tensor) -> Outputs:
        """Project all views; assign the first one and that of the first partner."""
        *partners, rows, partner_rows = seen
        features, of_partners = net.online.encoder(a), [net.online.encoder(view) for view in partners]
        z_a, z_b = _project(net, features), _project(net, net.online.encoder(b))
        others = torch.stack([z_b, *(_project(net, each) for each in of_partners)], dim=1)
        degree = net.notes["degree"].to(z_a.dtype)
        weights = torch.cat(
            [torch.ones_like(degree[rows, None]), edge_weights(degree, rows, partner_rows)], 1
        )
        positives = torch.einsum("nd,npd->np", z_a / self.method.graph_temperature, others) + weights.log()
        y, partner_y = net.online.assign(features), net.online.assign(of_partners[0])
        return Outputs(z_a, z_b, positives, y, partner_y, rows, net.notes["neighbours"][rows])

    def loss(self, outputs: Outputs) -> Tensor:
        """The contrast of images, the contrast of clusters, and equal cluster sizes."""
        contrast = graph_contrast(outputs, self.method.graph_temperature)
        clusters = partition_uncertainty(outputs.y, outputs.partner_y)
        return self.method.graph_weight * contrast + clusters + self.method.balance * imbalance(outputs.y)


def graph_contrast(outputs: Outputs, temperature: float) -> Float[Tensor, ""]:
    """Cross-entropy of finding a positive of z_a among the positives and all images but the neighbours."""
    z_a, z_b, positives, _, _, rows, neighbours = outputs
    near = (neighbours[:, :, None] == rows).any(dim=1) | (rows[:, None] == rows)
    negatives = [(z_a @ z.T / temperature).masked_fill(near, -torch.inf) for z in (z_a, z_b)]
    return (torch.cat([positives, *negatives], dim=1).logsumexp(dim=1) - positives.logsumexp(dim=1)).mean()


def edge_weights(
    degree: Float[Tensor, " images"], rows: Int64[Tensor, " n"], partners: Int64[Tensor, "n p"]
) -> Float[Tensor, "n p"]:
    """Minus the entries of the normalised Laplacian between images and neighbours."""
    return (degree[rows, None] * degree[partners]).rsqrt()


def _notes(neighbours: Int64[Tensor, "n k"]) -> State:
    """The neighbours, divided among the partners in turn, and the degrees."""
    k = neighbours.shape[1]
    turns = torch.arange(-(-k // PARTNERS_SEEN))
    candidates = [neighbours[:, (PARTNERS_SEEN * turns + j) % k] for j in range(PARTNERS_SEEN)]
    partners = torch.stack(candidates, dim=1)
    return {PARTNERS: partners, "neighbours": neighbours, "degree": degrees(neighbours)}


def _project(net: Network, features: Tensor) -> Tensor:
    return F.normalize(net.online.instance(features), dim=1)
