"""Federated spectral clustering: several prototypes per cluster, merged by how often images share them.

By default it is a consensus of several such clusterings, which differ in axes, prototypes and first centres.
An image shares the prototypes of its nearest neighbours at its client, too (docs/decisions/0024). If clients
hold different classes, prototypes of a cluster are those that the same clients hold (docs/decisions/0031).
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import HEAD, Statistics, encode, images_needed
from fedmcc.methods.distinct_images import distinct_images
from fedmcc.methods.extras import Additive, add_up, additive_mismatch
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.prototype_sums import PrototypeSums
from fedmcc.networks.prototypes import Member, Prototypes, rows_of
from fedmcc.numerics import cluster_number
from fedmcc.numerics.client_profiles import MIN_CONCENTRATION, concentration
from fedmcc.numerics.consensus import consensus
from fedmcc.numerics.matrices import from_upper_triangle, is_positive_semidefinite, upper_triangle
from fedmcc.numerics.neighbours import mean_of_rows, with_nearest
from fedmcc.numerics.normalized_cut import Affinity, Balance, Parts
from fedmcc.numerics.profiled_cut import (
    Graph,
    classes_differ,
    clients_look_different,
    profiled_cut,
    quality,
)
from fedmcc.numerics.state_dicts import State

log = logging.getLogger(__name__)

AXES_FACTORS = (1.0, 5 / 3)  # of the members, in turn, as multiples of `axes`
PROTOTYPES_FACTORS = (1.0, 1.0, 2.0, 2.0, 1.0)  # of the members, in turn, as multiples of `prototypes`
FEW_PROTOTYPES, MANY_PROTOTYPES = 10.0, 20.0  # per cluster: of few images or an unknown number, and of many
IMAGES_PER_PROTOTYPE = 50  # in between
MAX_PROTOTYPES = 1_000  # of all members together, up to 100 clusters: bounds the affinities that are sent
MAX_OF_MANY = 1_400  # the same if there are more than `FEW_PROTOTYPES` per cluster
EXPECTED_CLUSTERS = 10  # for which prototypes and axes are counted if the number of clusters is chosen
CURVE = "cluster_number"  # the extras with the scores of each number of clusters
MAX_PROTOTYPES_PER_CLUSTER = 10  # of all members together, for more clusters
MAX_NEIGHBOURHOOD = 0.2  # of the images that a cluster has on average at a client that holds it
LOOK_DIFFERENT = (
    "The images of clients look different (%.2f of 1) in all clusters: check whether they are prepared alike "
    "(device, contrast, noise, size), or use views that vary what differs. Who holds them is ignored."
)
BLOCK = 4_096  # images whose outer products are added up in double precision at a time
MAX_IMAGES = 20_000  # of a client from which affinities are computed; of more, a random sample


@dataclass(frozen=True)
class FederatedSpectral(FederatedKMeans):
    """Federated k-means with several prototypes per cluster, merged into clusters by a normalised cut.

    A cluster is a group of prototypes, so that it need not be convex, as in k-means. A client sends an
    affinity matrix of the prototypes, and the server cuts the sum over all clients. With several members,
    the server cuts each member's prototypes, and then the graph of all their clusters.
    """

    axes: float = 3.0  # whitened axes per cluster; 0: no whitening
    variance: float = 0.95  # share that the whitened axes hold at most; axes beyond it are left out as noise
    excess: float = 1.0  # local centroids per prototype
    images_per_centroid: int = 10  # at least, unless that gives fewer centroids than clusters
    temperature: float = 0.05  # of the soft assignments
    prototypes: float | None = None  # per cluster; None: 10 to 20, by the number of images
    neighbours: int = 10  # images of a client that share prototypes with an image; 0: none
    ownership: bool = True  # clusters are also formed by which clients hold the prototypes, if clients differ
    balance: Balance = (
        "auto"  # weight of equal cluster sizes in the choice of a cut; auto: sizes from the data
    )
    members: int = 5  # clusterings in the consensus; 1: a single one
    prototype_rounds: int = 0  # that find prototypes by sums alone; 0: centroids, in one round
    choose: bool = False  # the number of clusters from the affinities; `clusters` is then the largest

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "prototypes", "members", section="clustering")
        require_balance(self.balance, "clustering")
        require_count(self, "neighbours", "prototype_rounds", section="clustering")
        if self.choose and self.members < 2:
            raise InputError("The number of clusters is chosen by the agreement of members: set 2 or more.")

    @property
    def sets(self) -> int:
        """The number of sets of prototypes."""
        return self.members

    def head(self, features: int, clusters: int) -> Prototypes:
        """A head of prototypes; if the number of clusters is chosen, it leaves out the unused ones."""
        head = super().head(features, clusters)
        head.trims = self.choose
        return head

    def head_members(self, features: int, clusters: int) -> tuple[Member, ...]:
        """Sets of prototypes that differ in number and axes, within the limit of all prototypes."""
        clusters = min(clusters, EXPECTED_CLUSTERS) if self.choose else clusters
        numbers = range(self.members)
        prototypes = self.prototypes or FEW_PROTOTYPES
        wanted = [prototypes * clusters * PROTOTYPES_FACTORS[i % len(PROTOTYPES_FACTORS)] for i in numbers]
        limit = MAX_OF_MANY if prototypes > FEW_PROTOTYPES else MAX_PROTOTYPES
        most = max(limit, MAX_PROTOTYPES_PER_CLUSTER * clusters, wanted[0])
        scale = min(1.0, most / sum(wanted))
        axes = [round(self.axes * clusters * AXES_FACTORS[i % len(AXES_FACTORS)]) for i in numbers]
        return tuple(
            Member(max(clusters, round(scale * count)), min(features, axis) or features)
            for count, axis in zip(wanted, axes, strict=True)
        )

    def stages(self) -> tuple[Stage, ...]:
        """The stages of federated k-means, then merging: one round each, without training."""
        *before, centroids = super().stages()
        if self.prototype_rounds:
            smallest = images_needed(self.smallest)
            sums = PrototypeSums(rounds=self.prototype_rounds, members=self.members, smallest=smallest)
            return (*before, sums, Merging(method=self))
        unfinished = replace(centroids, shared=(f"{HEAD}.vectors",), frozen=("online.encoder", HEAD))
        return (*before, unfinished, Merging(method=self))


def sampled_rows(count: int) -> slice | Int64[Tensor, " n"]:
    """The rows of a client from which affinities are computed: all, or MAX_IMAGES drawn at random.

    Files often alternate, such as left and right: every other one would be of one kind.
    """
    if count <= MAX_IMAGES:
        return slice(None)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:MAX_IMAGES].sort().values


def prototypes_for(images: int, clusters: int) -> float:
    """Prototypes per cluster for this number of images in total; docs/decisions/0030 has what they gain."""
    return min(MANY_PROTOTYPES, max(FEW_PROTOTYPES, images / (IMAGES_PER_PROTOTYPE * clusters)))


def require_balance(balance: Balance, section: str) -> None:
    """Raise unless the weight of equal cluster sizes is "auto", zero or positive."""
    if balance != "auto" and not 0 <= balance < math.inf:
        raise InputError(f'{section}.balance is {balance}: give "auto", 0 or a positive number.')


def require_count(options: object, *names: str, section: str) -> None:
    """Raise unless these numbers are zero or positive."""
    for name in names:
        if (value := getattr(options, name)) < 0:
            raise InputError(f"{section}.{name} is {value}: give 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Merging(Statistics):
    """Clients send the affinities of the prototypes on their images; the server groups the prototypes."""

    method: FederatedSpectral
    name: str = "merging"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The sum over images of p pᵀ, where p is the soft assignment to the prototypes of all members."""
        head, features = net.online.cluster_projector, torch.cat([*encode(net, batches)])
        rows, images = sampled_rows(len(features)), len(features)
        first, copies, _ = distinct_images(net, images, rows)
        features = features[rows][first]  # without copies: they would be the nearest neighbours of an image
        p = head.assign_to_prototypes(features)
        if self.method.neighbours:
            p = sharpened(p, head.members)
            table = with_nearest(F.normalize(features, dim=1), self.neighbourhood(p, head.groups.shape[1]))
            p = mean_of_rows(p, table)
        affinity = sum_of_outer_products(p, copies) * images / int(copies.sum())
        return {"affinity": upper_triangle(affinity).float()}

    def neighbourhood(self, p: Float[Tensor, "n prototypes"], clusters: int) -> int:
        """The number of neighbours of an image, so few that they are mostly of its cluster.

        A client holds about as large a part of the clusters as it uses of the prototypes.
        """
        clusters = min(clusters, EXPECTED_CLUSTERS) if self.method.choose else clusters
        used = float(torch.special.entr(p.mean(dim=0)).sum().exp()) / p.shape[1]
        images = len(p) / max(1.0, clusters * used)  # of a cluster at this client
        return min(self.method.neighbours, max(1, round(MAX_NEIGHBOURHOOD * images)))

    def additive(self, weights: State) -> dict[str, Additive]:
        """The sum of p pᵀ, where p has a share of 1 / members for each of them."""
        count = len(weights[f"{HEAD}.groups"])
        shape, norm = (count * (count + 1) // 2,), 1 / self.method.members
        return {"affinity": Additive(torch.float32, shape, is_sum=True, norm=norm)}

    def extras_error(self, update: Update) -> str:
        """Check that the affinities can be those of one soft assignment per image."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        affinity = from_upper_triangle(update.extras["affinity"].double() / update.samples)
        members = torch.tensor([member.count for member in self.method.members_of(update.weights)])
        onto = torch.eye(len(members), dtype=torch.float64).repeat_interleave(members, dim=0)
        shares = (onto.T @ affinity @ onto) * len(members) ** 2  # all 1: members have equal shares
        valid = (
            bool((affinity >= 0).all())
            and float((shares - 1).abs().max()) <= 1e-2
            and is_positive_semidefinite(affinity, 1e-5)
        )
        return "" if valid else "Its affinities are not those of one soft assignment per image."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Group the prototypes by normalised cuts of the summed affinities."""
        total = add_up(updates, "affinity", self.counts(updates)).clamp_min(0)  # noise may be negative
        affinity = from_upper_triangle(total)
        clusters = most = model[f"{HEAD}.groups"].shape[1]
        members, curve = [member.count for member in self.method.members_of(model)], {}
        if self.method.choose:
            found = cluster_number.curve(affinity.numpy(), members, most)
            clusters, curve = cluster_number.ranked(found)[0], {CURVE: torch.from_numpy(found)}
        parts = self.grouped(updates, affinity.numpy(), members, clusters)
        groups = torch.eye(most)[torch.from_numpy(parts).long()]
        sizes = affinity.sum(dim=1).float() @ groups
        return Aggregate({f"{HEAD}.groups": groups, f"{HEAD}.marginal": sizes / sizes.sum()}, curve)

    def grouped(
        self, updates: Sequence[Update], whole: Affinity, members: Sequence[int], clusters: int
    ) -> Parts:
        """The cluster of each prototype; if clients hold different classes, also by who holds it."""
        by_images = consensus(whole, members, clusters, self.method.balance)
        if not self.method.ownership or self.method.balance != "auto":
            return by_images
        masses, images = np.stack([*self.masses(updates)], axis=1), whole.sum() * len(members) / len(whole)
        if (found := concentration(masses, images)) < MIN_CONCENTRATION:
            return by_images
        by_clients, graph = profiled_cut(whole, masses, members, clusters), Graph.of(whole, masses)
        before, after = (quality(graph, parts, clusters) for parts in (by_images, by_clients))
        if classes_differ(before, after):
            log.info("Clients hold different images (%.2f): clusters also depend on who holds them.", found)
            return by_clients
        if clients_look_different(before):
            log.warning(LOOK_DIFFERENT, found)
        return by_images

    def masses(self, updates: Sequence[Update]) -> Iterator[Float64[np.ndarray, " prototypes"]]:
        """The images that each client has at each prototype: the row sums of its affinities."""
        for update, count in zip(updates, self.counts(updates), strict=True):  # one at a time: they are large
            sent = update.extras["affinity"].double() * (count / update.samples)
            yield from_upper_triangle(sent.clamp_min(0)).sum(dim=1).numpy()


def sum_of_outer_products(
    p: Float[Tensor, "n prototypes"], copies: Int64[Tensor, " n"]
) -> Float64[Tensor, "prototypes prototypes"]:
    """The sum over rows of p pᵀ in double precision, where each row counts as often as it has copies."""
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(p), BLOCK):
        rows, count = p[start : start + BLOCK].cpu().double(), copies[start : start + BLOCK]
        total = total + rows.T @ (rows * count[:, None])
    return total


def sharpened(p: Float[Tensor, "n prototypes"], members: Sequence[Member]) -> Float[Tensor, "n prototypes"]:
    """Soft assignments at half the temperature: neighbours connect prototypes instead."""
    shares = [p[:, rows].square() for rows in rows_of(members)]
    return torch.cat([share / share.sum(dim=1, keepdim=True) for share in shares], dim=1) / len(members)
