"""SCAN: semantic clustering by adopting nearest neighbours (Van Gansbeke et al., ECCV 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.methods.about import About
from fedmcc.methods.base import Parts, Stage
from fedmcc.methods.best_head import BestHead
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.fedsimclr import FedSimCLR, Representation
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.inputs import PARTNER, VIEW, Overview, Sights
from fedmcc.methods.neighbour_agreement import Assigned, NeighbourAgreement
from fedmcc.methods.self_labelling import SelfLabelling
from fedmcc.networks.heads import Heads, Norm
from fedmcc.networks.momentum import Network, set_cluster_projector


@dataclass(frozen=True)
class SCAN:
    """SCAN: SimCLR, then clusters that an image shares with its nearest neighbours, then self-labelling."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Van Gansbeke et al., ECCV",
        2020,
        "stored neighbours of each image",
        cost=0.65,
    )

    rounds: int = 100  # of SimCLR
    epochs: int = 1  # E, in every stage
    neighbour_rounds: int = 25  # rounds of clustering by neighbours
    neighbour_rate: float = 1.0  # its learning rate, as a multiple of training.learning_rate
    label_rounds: int = 10  # rounds of self-labelling
    neighbours: int = 20  # k, with the image itself
    heads: int = 5  # the one with the smallest loss is used
    entropy_weight: float = 5.0  # lambda
    confidence: float = 0.99  # of images that label themselves
    label_rate: float = 0.1  # learning rate of self-labelling, as a multiple of training.learning_rate
    temperature: float = 0.5  # of SimCLR
    hidden: int = 512  # width of the projector
    projections: int = 128
    norm: Norm = "batch"  # normalisation of the projector

    def __post_init__(self) -> None:
        require_positive(self, "neighbour_rounds", "label_rounds", "neighbours", "heads", "entropy_weight")
        require_positive(self, "neighbour_rate", "label_rate", "temperature", "hidden", "projections")
        require_fraction(self, "confidence")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """SimCLR's branch with linear heads."""
        net = self._simclr.build(encoder, features, clusters)
        set_cluster_projector(net, Heads(features, clusters, self.heads))
        return net

    def stages(self) -> tuple[Stage, ...]:
        """Representation, neighbours and self-labelling."""
        parts: Parts = ("online.encoder", "online.instance_projector")
        simclr = Representation(
            rounds=self.rounds, epochs=self.epochs, method=self._simclr, trained=parts, shared=parts
        )
        neighbours = Neighbours(
            rounds=self.neighbour_rounds,
            epochs=self.epochs,
            heads=self.heads,
            neighbours=self.neighbours,
            entropy_weight=self.entropy_weight,
            learning_rate_factor=self.neighbour_rate,
        )
        labels = SelfLabelling(
            rounds=self.label_rounds,
            epochs=self.epochs,
            confidence=self.confidence,
            learning_rate_factor=self.label_rate,
        )
        return (simclr, neighbours, labels)

    @property
    def _simclr(self) -> FedSimCLR:
        return FedSimCLR(
            temperature=self.temperature, hidden=self.hidden, projections=self.projections, norm=self.norm
        )


@dataclass(frozen=True, kw_only=True)
class Neighbours(NeighbourAgreement, BestHead):
    """Views of an image and of its neighbours, found by the cosine of projections, belong to one cluster."""

    name: str = "neighbours"
    weight: str = f"{HEAD}.linear.weight"
    trained: Parts = ("online.encoder", HEAD)
    shared: Parts = ("online.encoder", HEAD)
    sees: Sights = (VIEW, PARTNER)

    def points(self, net: Network, overview: Overview) -> Tensor:
        """Projections of length 1."""
        z = overview.features(lambda batch: net.online.instance(net.online.encoder(batch)))
        return F.normalize(z, dim=1)

    def represent(self, net: Network, view: Tensor, neighbour: Tensor) -> Assigned:
        """Assign both views by every head."""
        heads = net.online.cluster_projector
        assert isinstance(heads, Heads)
        y, partner = (heads.all(net.online.encoder(each)) for each in (view, neighbour))
        return self.assigned(net, y, partner)
