"""PCL: prototypical contrastive learning (Li et al., ICLR 2021)."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods import fedmoco
from fedmcc.methods.about import About
from fedmcc.methods.base import Stage
from fedmcc.methods.hyperparameters import require_fraction
from fedmcc.methods.inputs import ROW, VIEW, Overview, Sights
from fedmcc.numerics import kmeans
from fedmcc.numerics.cluster_widths import cluster_widths
from fedmcc.numerics.state_dicts import State

RESTARTS = 3  # of each k-means


@dataclass(frozen=True)
class PCL(fedmoco.FedMoCo):
    """MoCo with prototypes: images are also contrasted with the centres of several k-means."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Li et al., ICLR",
        2021,
        "a clustering, several k-means per epoch",
        cost=0.5,
    )

    epochs: int = 1  # E
    queue: int = 1024  # number of keys
    hidden: int = 512  # width of the projector
    prototypes: tuple[int, ...] = (25, 50, 100)  # clusters of each k-means, far fewer than a client's images
    weight: float = 1.0  # of the contrast with prototypes
    warm_up: float = 0.3  # fraction of the stage without prototypes

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "warm_up")
        if not 0 <= self.weight < math.inf:
            raise InputError(f"method.weight is {self.weight}: give 0 or more.")
        if not self.prototypes or min(self.prototypes) < 1:
            raise InputError(f"method.prototypes is {list(self.prototypes)}: give numbers above 0.")

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation."""
        return (Prototypical(rounds=self.rounds, epochs=self.epochs, method=self),)


class Outputs(NamedTuple):
    """MoCo's outputs, and the cross-entropy of finding each image's prototypes, mean over the k-means."""

    positive: Tensor
    negatives: Tensor
    key: Tensor
    prototypes: Tensor


@dataclass(frozen=True, kw_only=True)
class Prototypical(fedmoco.Representation):
    """InfoNCE against a queue, plus the contrast of each query with the prototypes of its client."""

    method: PCL
    name: str = "contrast"  # a clustering may have a stage named prototypes
    sees: Sights = (VIEW, VIEW, ROW)

    def first_notes(self, net: fedmoco.MomentumQueue, count: int) -> State:
        """No prototypes: a single one for all images has no loss."""
        scales = range(len(self.method.prototypes))
        centres = {f"centres{scale}": torch.zeros(1, self.method.projections) for scale in scales}
        widths = {f"widths{scale}": torch.ones(1) for scale in scales}
        return {"cluster": torch.zeros((count, len(scales)), dtype=torch.int64), **centres, **widths}

    def prepare(self, net: fedmoco.MomentumQueue, overview: Overview) -> None:
        """After the warm-up: several k-means of the target's projections."""
        if overview.passed < self.method.warm_up or not self.method.weight:
            return
        z = overview.features(lambda batch: fedmoco.unit_projections(net.target, batch))
        labels = []
        for scale, count in enumerate(self.method.prototypes):
            seed = overview.seed + scale
            model = kmeans.fit(z.cpu().numpy(), min(count, len(z)), seed, restarts=RESTARTS)
            labels.append(torch.from_numpy(model.labels_).long().to(z.device))
            centres = torch.from_numpy(model.cluster_centers_).to(z)
            net.notes[f"centres{scale}"] = F.normalize(centres, dim=1)
            net.notes[f"widths{scale}"] = cluster_widths(z, centres, labels[-1], self.method.temperature)
        net.notes["cluster"] = torch.stack(labels, dim=1)

    def represent(  # type: ignore[override]
        self, net: fedmoco.MomentumQueue, a: Tensor, b: Tensor, rows: Tensor
    ) -> Outputs:
        """MoCo's comparisons, and those with the prototypes."""
        (query, compared), losses = self.compare(net, a, b), []
        for scale, cluster in enumerate(net.notes["cluster"][rows].unbind(dim=1)):
            scores = query @ net.notes[f"centres{scale}"].T / net.notes[f"widths{scale}"]
            losses.append(F.cross_entropy(scores, cluster, reduction="none"))
        return Outputs(*compared, torch.stack(losses).mean(dim=0))

    def loss(self, outputs: Outputs) -> Tensor:  # type: ignore[override]
        """InfoNCE plus the weighted contrast with prototypes."""
        info_nce = super().loss(fedmoco.Outputs(*outputs[:3]))
        return info_nce + self.method.weight * outputs.prototypes.mean()

    def after_step(self, net: fedmoco.MomentumQueue, outputs: Outputs) -> None:  # type: ignore[override]
        """Update the key network and the queue, as MoCo does."""
        super().after_step(net, fedmoco.Outputs(*outputs[:3]))
