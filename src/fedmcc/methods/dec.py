"""DEC: deep embedded clustering (Xie, Girshick and Farhadi, ICML 2016), with two variants as options.

`reconstruction_weight` keeps the decoder in training (IDEC, Guo et al., IJCAI 2017), and `augment` trains on
random views (DEC-DA, Guo et al., ACML 2018).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.methods.about import About
from fedmcc.methods.ae import AE, squared_errors
from fedmcc.methods.base import Stage
from fedmcc.methods.centroids import images_needed
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.inputs import PLAIN, ROW, VIEW, Overview
from fedmcc.methods.lloyd import Lloyd, Seeds
from fedmcc.networks.autoencoder import Autoencoder
from fedmcc.networks.centres import Centres
from fedmcc.networks.momentum import set_cluster_projector
from fedmcc.numerics.state_dicts import State


@dataclass(frozen=True)
class DEC(AE):
    """Deep embedded clustering: an autoencoder and centres, trained on their own sharpened assignments."""

    about: ClassVar[About] = About(
        "centralized deep clustering",
        "Xie, Girshick and Farhadi, ICML",
        2016,
        "an encoder with `shape`",
        cost=0.57,
    )

    lloyd_rounds: int = 10  # of k-means on the codes, where the centres start
    hardening_rounds: int = 30  # rounds of training on sharpened assignments
    hardening_rate: float = 0.1  # learning rate of this training, as a multiple of training.learning_rate
    interval: int = 1  # epochs between two computations of the sharpened assignments
    reconstruction_weight: float = 0.0  # of the squared error in this training; 10: as in IDEC
    smallest: int | None = None  # images of a first centre; None: 10, or 1 for a client alone

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "lloyd_rounds", "hardening_rounds", "hardening_rate", "interval", "smallest")
        if self.reconstruction_weight < 0:
            raise InputError(f"method.reconstruction_weight is {self.reconstruction_weight}: give 0 or more.")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Autoencoder:
        """An autoencoder with one centre per cluster in the space of its codes."""
        net = super().build(encoder, features, clusters)
        set_cluster_projector(net, Centres(self.code, clusters))
        return net

    def stages(self) -> tuple[Stage, ...]:
        """Reconstruction, k-means on the codes, and training on sharpened assignments."""
        parts = ("online", "decoder") if self.reconstruction_weight else ("online",)
        hardening = Hardening(
            rounds=self.hardening_rounds,
            epochs=self.epochs,
            method=self,
            learning_rate_factor=self.hardening_rate,
            trained=parts,
            shared=parts,
            sees=(VIEW if self.augment else PLAIN, ROW),
        )
        smallest = images_needed(self.smallest)
        means = (Seeds(smallest=smallest), Lloyd(rounds=self.lloyd_rounds, smallest=smallest))
        return (*super().stages(), *means, hardening)


class Outputs(NamedTuple):
    """For each image its soft assignment q, its target p, and the squared error of its reconstruction."""

    q: Tensor
    p: Tensor
    errors: Tensor


@dataclass(frozen=True, kw_only=True)
class Hardening(Stage):
    """Minimise KL(p || q), where p sharpens the assignments q of the images without augmentation.

    p needs the sizes f of the clusters in the images of all clients. Each client puts its own sizes into the
    head, which the server averages, and scales the average by how its own sizes have changed since. With one
    client these are its sizes; only the first sharpening uses those of k-means.
    """

    method: DEC
    name: str = "hardening"

    def first_notes(self, net: Autoencoder, count: int) -> State:
        """Clusters in turn as targets, no assignments, and unknown cluster sizes of this client."""
        clusters = len(_head(net).marginal)
        return {
            "p": torch.eye(clusters)[torch.arange(count) % clusters],
            "assigned": torch.full((count,), -1),
            "changed": torch.ones(()),
            "own": torch.zeros(clusters),
            "all": torch.full((clusters,), 1 / clusters),
        }

    def prepare(self, net: Autoencoder, overview: Overview) -> None:
        """Compute the targets, and the share of images whose cluster has changed."""
        head, notes = _head(net), net.notes
        if overview.epoch % self.epochs == 0:  # the head has the sizes of all clients
            notes["all"] = head.marginal.clone()
        if overview.epoch % self.method.interval:
            return
        q = overview.features(lambda batch: net.online.assign(net.online.encoder(batch)))
        own = q.mean(dim=0)
        if notes["own"].any():
            notes["all"] = notes["all"] * own / notes["own"]
        assigned = q.argmax(dim=1)
        changed = (assigned != notes["assigned"]).float().mean()
        notes |= {"p": sharpened(q, notes["all"]), "assigned": assigned, "changed": changed, "own": own}
        head.marginal.copy_(own)

    def represent(self, net: Autoencoder, images: Tensor, rows: Tensor) -> Outputs:
        """Assign the images; reconstruct them if that is part of the loss."""
        codes = net.online.encoder(images)
        weighted = bool(self.method.reconstruction_weight)
        errors = squared_errors(net, codes, images) if weighted else codes.new_zeros(len(codes))
        return Outputs(net.online.assign(codes), net.notes["p"][rows], errors)

    def loss(self, outputs: Outputs) -> Tensor:
        """KL(p || q) per image, plus the weighted squared error."""
        p, q = outputs.p, outputs.q
        divergence: Tensor = (torch.special.xlogy(p, p) - p * q.log()).sum(dim=1).mean()
        return divergence + self.method.reconstruction_weight * outputs.errors.mean()


def sharpened(q: Float[Tensor, "n k"], sizes: Float[Tensor, " k"]) -> Float[Tensor, "n k"]:
    """p proportional to q² / f, where f are the cluster sizes; each row sums to 1."""
    weights = q.square() / sizes.clamp_min(torch.finfo(q.dtype).tiny)
    return weights / weights.sum(dim=1, keepdim=True)


def _head(net: Autoencoder) -> Centres:
    head = net.online.cluster_projector
    assert isinstance(head, Centres)
    return head
