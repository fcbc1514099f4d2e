"""The default clustering: clusters keep what an image tells about its neighbour and about its owner.

Clients send moments, centroids and affinities of their features, in a round each; nothing is trained.
docs/clustering.md explains it in seven lines.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.centroids import (
    FEW_CENTROIDS,
    HEAD,
    VECTORS,
    Statistics,
    centroids_error,
    encode,
    gathered,
    images_needed,
    local_centroids,
    sent,
)
from fedmcc.methods.distinct_images import distinct_images, distinct_points
from fedmcc.methods.extras import Additive, add_up, additive_mismatch
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.methods.prototype_sums import PrototypeSums
from fedmcc.methods.whitening import Whitening
from fedmcc.networks.momentum import Network, set_cluster_projector
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics import kmeans
from fedmcc.numerics.informative_cuts import (
    Informative,
    beyond_chance,
    grouped_owners,
    known_about_owner,
    recognised,
)
from fedmcc.numerics.matrices import from_upper_triangle, is_positive_semidefinite, upper_triangle
from fedmcc.numerics.neighbours import mean_of_rows, with_nearest
from fedmcc.numerics.state_dicts import State

log = logging.getLogger(__name__)

MOST_AXES, SHARE = 64, 0.95  # of the features and of their variance: the other axes are mostly noise
FROZEN_AXES = 32  # pretrained features have a long tail of axes that no class uses
HALF = 0.5  # whitening: axes of little variance count, but less than the others
MOST_PROTOTYPES = 2_000  # unless there are more clusters: bounds the affinities that are sent
IMAGES_PER_CENTROID = (
    1.5  # of a client's k-means, as a multiple of `smallest`: few clusters are too small then
)
MOST_SETS = 5  # of centroids of a client, of which each has all its images
MOST_SHARE_OF_NEIGHBOURS = 0.2  # of the images that a cluster has on average at a client that holds it
MOST_IMAGES = 20_000  # of a client from which affinities are computed; of more, a random sample
BLOCK = 4_096  # images whose outer products are added up in double precision at a time
CLASSES_WEIGHT = 4.0  # of knowing the owner, if nothing of it is chance
LOOKS_WEIGHT = -0.25
EQUAL = 1e-9  # nats about the owner: less is rounding of equal histograms
LOOK_DIFFERENT = 0.2  # of 1: how well owners are recognised in other clusters; classes and IID stay below .15
EXPECTED_CLUSTERS = 10  # for which prototypes are counted if the number of clusters is chosen
CHEAP = 0.03  # nats that a merge may lose if the number of clusters is chosen
HIERARCHY = (
    "affinity",
    "cuts",
    "values",
)  # extras of the last round, for other numbers of clusters
MOST_CUTS = 50  # numbers of clusters that it has
LOOKS = (
    "The images of clients look different (%.2f of 1): check whether they are prepared alike (device, "
    "contrast, noise, size), or use views that vary what differs. Clusters avoid what tells clients apart. "
    'If clients only hold different classes, set clustering.clients_differ_in to "classes".'
)


@dataclass(frozen=True)
class InformativeClustering:
    """Prototypes of all clients, merged into clusters that tell most about an image's neighbour and owner."""

    prototypes: float = 30.0  # per cluster
    neighbours: int = 10  # images of a client that share prototypes with an image; 0: none
    clients_differ_in: Literal["auto", "classes", "looks"] = "auto"  # another mix of classes, another device
    temperature: float = 0.05  # of the soft assignments to prototypes
    prototype_rounds: int = 0  # that find prototypes by sums alone; 0: centroids, in one round
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone
    choose: bool = False  # the number of clusters from the merges; `clusters` is then the largest

    def __post_init__(self) -> None:
        require_positive(self, "prototypes", "temperature", "smallest", section="clustering")
        for name in ("neighbours", "prototype_rounds"):
            if (value := getattr(self, name)) < 0:
                raise InputError(f"clustering.{name} is {value}: give 0 or more.")

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a head of prototypes to the network."""
        wanted = round(self.prototypes * (min(clusters, EXPECTED_CLUSTERS) if self.choose else clusters))
        count = max(clusters, min(wanted, MOST_PROTOTYPES))
        most = FROZEN_AXES if getattr(net.online.encoder, "pretrained", False) else MOST_AXES
        head = Prototypes(features, clusters, count, min(features, most), self.temperature)
        head.trims = self.choose
        set_cluster_projector(net, head)

    def stages(self) -> tuple[Stage, ...]:
        """Axes, prototypes and clusters, in a round each; prototypes by sums take several."""
        smallest = images_needed(self.smallest)
        prototypes = (
            PrototypeSums(rounds=self.prototype_rounds, smallest=smallest)
            if self.prototype_rounds
            else LocalPrototypes(smallest=smallest)
        )
        return (Whitening(power=HALF, variance=SHARE), prototypes, InformativeMerging(method=self))


@dataclass(frozen=True, kw_only=True)
class LocalPrototypes(Statistics):
    """Clients send centroids in proportion to their images; all of them together are the prototypes."""

    smallest: int
    seed: int = 0  # of the clients' k-means
    name: str = "prototypes"
    shared: Parts = (VECTORS,)
    frozen: Parts = ("online.encoder", HEAD)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Centroids of this client's whitened features, and their numbers of images.

        A client of few images sends several sets of centroids, each of all its images, because a centroid
        must represent many of them.
        """
        head = net.online.cluster_projector
        found = distinct_points(net, torch.cat([head.whitening(x).cpu() for x in encode(net, batches)]))
        images = int(found.copies.sum())  # of which the server may have counted fewer
        share = len(head.vectors.weight) * min(1.0, images / max(float(head.images), 1.0))
        possible = len(found.points) / (IMAGES_PER_CENTROID * self.smallest)
        count = max(1, round(min(share, possible)))
        sets = min(MOST_SETS, max(1, round(share / count))) if count > 1 else 1
        each = [local_centroids(found, count, self.seed + number, self.smallest) for number in range(sets)]
        centres, sizes = (np.concatenate(arrays) for arrays in zip(*each, strict=True))
        return sent((kmeans.unit_rows(centres), sizes))

    def extras_error(self, update: Update) -> str:
        """Check number, sizes and lengths of the centroids."""
        most, axes = update.weights[VECTORS].shape
        most *= 2  # the number of sets is rounded
        return centroids_error(update, most, axes, self.smallest, sets=MOST_SETS)

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The centroids as they are; more than the head has room for are joined by k-means."""
        vectors, clusters = torch.zeros_like(model[VECTORS]), model[f"{HEAD}.groups"].shape[1]
        rows, sizes = gathered(updates, self.counts(updates))
        if len(rows) < clusters:
            log.warning(FEW_CENTROIDS, len(rows), clusters)
        if len(rows) > len(vectors):
            rows = kmeans.fit_weighted(rows, len(vectors), self.seed, sizes, restarts=1).centres
        vectors[: len(rows)] = F.normalize(torch.from_numpy(rows), dim=1).to(vectors)
        return Aggregate({VECTORS: vectors}, {})


@dataclass(frozen=True, kw_only=True)
class InformativeMerging(Statistics):
    """Clients send how often prototypes share an image, and histograms; the server merges prototypes."""

    method: InformativeClustering
    name: str = "clusters"

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Σ p̄ p̄ᵀ over images, where p̄ is the mean of p over an image and its neighbours, and Σ p."""
        head, features = net.online.cluster_projector, torch.cat([*encode(net, batches)])
        images, kept = len(features), sampled_rows(len(features))
        first, copies, _ = distinct_images(net, images, kept)
        points = head.whitening(features[kept][first])  # a copy would be the nearest neighbour of an image
        p, weights = head.assign_points(points), copies.double() * (images / int(copies.sum()))
        shared = p
        if self.method.neighbours:
            shared = mean_of_rows(p, with_nearest(points, self.neighbourhood(p, head.groups.shape[1])))
        affinity = torch.zeros(p.shape[1], p.shape[1], dtype=torch.float64)
        for start in range(0, len(p), BLOCK):
            rows = shared[start : start + BLOCK].cpu().double()
            affinity += rows.T @ (rows * weights[start : start + BLOCK, None])
        return {
            "affinity": upper_triangle(affinity).float(),
            "histogram": (weights @ p.cpu().double()).float(),
        }

    def neighbourhood(self, p: Float[Tensor, "n prototypes"], clusters: int) -> int:
        """The number of neighbours of an image, so few that they are mostly of its cluster.

        A client holds about as large a part of the clusters as it uses of the prototypes.
        """
        clusters = min(clusters, EXPECTED_CLUSTERS) if self.method.choose else clusters
        used = float(torch.special.entr(p.mean(dim=0)).sum().exp()) / p.shape[1]
        images = len(p) / max(1.0, clusters * used)  # of a cluster at this client
        return min(self.method.neighbours, max(1, round(MOST_SHARE_OF_NEIGHBOURS * images)))

    def additive(self, weights: State) -> dict[str, Additive]:
        """Both; their means over a client's images have a Euclidean norm of 1 at most."""
        count = len(weights[VECTORS])
        lengths = {"affinity": count * (count + 1) // 2, "histogram": count}
        return {key: Additive(torch.float32, (n,), is_sum=True, norm=1.0) for key, n in lengths.items()}

    def extras_error(self, update: Update) -> str:
        """Check that both can be those of one soft assignment per image."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        affinity = from_upper_triangle(update.extras["affinity"].double() / update.samples)
        histogram = update.extras["histogram"].double() / update.samples
        valid = (
            bool((affinity >= 0).all())
            and bool((histogram >= 0).all())
            and max(abs(float(affinity.sum()) - 1), abs(float(histogram.sum()) - 1)) <= 1e-2
            and is_positive_semidefinite(affinity, 1e-5)
        )
        return "" if valid else "Its affinities are not those of one soft assignment per image."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Merge the prototypes; one belongs to a cluster as far as its neighbourhood does."""
        counts = self.counts(updates)
        total = from_upper_triangle(add_up(updates, "affinity", counts).clamp_min(0))  # noise may be negative
        used, images = (total.sum(dim=1) > 0).numpy(), float(total.sum())
        affinity = total.numpy()[np.ix_(used, used)] / images
        holdings = np.stack([*self.histograms(updates, counts)])[:, used]
        holdings /= holdings.sum()
        most = model[f"{HEAD}.groups"].shape[1]
        expected = min(most, EXPECTED_CLUSTERS) if self.method.choose else most
        weight = self.weight(affinity, holdings, model[VECTORS].numpy()[used], expected, images)
        informative = Informative(affinity, grouped_owners(holdings), weight)
        cuts = informative.cuts[: max(most, MOST_CUTS)]
        values = np.array([informative.value(cut) for cut in cuts])
        clusters = min(chosen_number(values[:most]) if self.method.choose else most, len(cuts))
        cuts[clusters - 1] = informative.improved(cuts[clusters - 1])
        every = np.full((len(cuts), len(used)), -1)
        every[:, used] = cuts
        extras = {"affinity": upper_triangle(total / images), "cuts": every, "values": values}
        hierarchy = {name: torch.as_tensor(value) for name, value in extras.items()}
        groups, marginal = head_of(hierarchy, clusters, most)
        return Aggregate({f"{HEAD}.groups": groups, f"{HEAD}.marginal": marginal}, hierarchy)

    def histograms(
        self, updates: Sequence[Update], counts: Sequence[float]
    ) -> Iterator[Float64[np.ndarray, " j"]]:
        """The images that each client has at each prototype."""
        for update, count in zip(updates, counts, strict=True):
            yield update.extras["histogram"].double().clamp_min(0).numpy() * (count / update.samples)

    def weight(
        self, affinity: np.ndarray, holdings: np.ndarray, vectors: np.ndarray, clusters: int, images: float
    ) -> float:
        """The weight of what a cluster tells about the owner: positive if clients differ in their classes."""
        if known_about_owner(holdings, np.arange(holdings.shape[1])) < EQUAL:
            return 0.0  # one client, or the sum alone
        by_images = Informative(affinity, holdings[:0]).cuts[min(clusters, len(affinity)) - 1]
        differ, seen = self.method.clients_differ_in, recognised(vectors, holdings, by_images)
        if differ == "auto" and seen > LOOK_DIFFERENT:
            log.warning(LOOKS, seen)
        if differ == "looks" or (differ == "auto" and seen > LOOK_DIFFERENT):
            return LOOKS_WEIGHT
        return CLASSES_WEIGHT * beyond_chance(holdings, by_images, images)


def head_of(hierarchy: State, clusters: int, width: int) -> tuple[Tensor, Tensor]:
    """P(cluster | prototype), by how much of its neighbourhood is in the cluster, and P(cluster)."""
    affinity, cut = from_upper_triangle(hierarchy["affinity"].double()), hierarchy["cuts"][clusters - 1]
    members = torch.eye(width, dtype=torch.float64)[cut.clamp_min(0)] * (cut >= 0)[:, None]
    near = affinity @ members
    groups = near / near.sum(dim=1, keepdim=True).clamp_min(1e-300)
    return groups.float(), near.sum(dim=0).float()


def chosen_number(values: Float64[np.ndarray, " most"]) -> int:
    """The number at which the next merge would lose CHEAP or more; values[m - 1] is V of m clusters."""
    clusters = len(values)
    while clusters > 2 and values[clusters - 1] - values[clusters - 2] < CHEAP:
        clusters -= 1
    return clusters


def sampled_rows(count: int) -> slice | Int64[Tensor, " n"]:
    """The rows of a client from which affinities are computed: all, or MOST_IMAGES drawn at random.

    Files often alternate, such as left and right: every other one would be of one kind.
    """
    if count <= MOST_IMAGES:
        return slice(None)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:MOST_IMAGES].sort().values
