"""A cluster projector with several prototypes per cluster and soft assignments by cosine similarity."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

OWN = 0.95  # weight of an owner's own mixture of clusters; the rest leaves every cluster possible


class Prototypes(nn.Module):
    """P(c | x) = Σ_j p_j(x) P(c | j), where p is the softmax of cos(x, prototype) / temperature.

    x are the whitened features. The buffers hold statistics of all clients that the server computes: the
    whitening (initially the first feature axes), P(c | j) (`groups`), the share of images per cluster
    (`marginal`), and the number of images. A prototype of length 0 is unused.
    """

    groups: Tensor
    marginal: Tensor
    images: Tensor

    def __init__(self, features: int, clusters: int, count: int, axes: int, temperature: float) -> None:
        super().__init__()
        self.whitening = Whitening(features, axes)
        self.vectors = nn.Linear(axes, count, bias=False)
        self.temperature = temperature
        self.trims = False  # whether the last clusters are left out if they have no prototypes
        self.register_buffer("groups", torch.eye(clusters)[torch.arange(count) % clusters])
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))
        self.register_buffer("images", torch.ones(()))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return self.assign_to_prototypes(features) @ self.groups[:, : self.in_use]

    def at_owner(
        self, features: Float[Tensor, "n d"], mixture: Float[Tensor, " k"] | None = None
    ) -> Float[Tensor, "n k"]:
        """Soft assignments of images of one owner with this mixture of clusters; None: that of the images."""
        p = self.assign_to_prototypes(features)
        groups, marginal = self.groups[:, : self.in_use], self.marginal[: self.in_use]
        own = OWN * ((p @ groups).mean(dim=0) if mixture is None else mixture) + (1 - OWN) * marginal
        return p @ F.normalize(groups * (own / marginal.clamp_min(1e-12)), p=1, dim=1)

    @property
    def in_use(self) -> int:
        """The number of clusters that images can be assigned to."""
        used = self.groups.any(dim=0) if self.trims else None
        return self.groups.shape[1] if used is None else int(used.nonzero().max()) + 1

    def keep(self, clusters: int) -> None:
        """Remove all clusters after the first ones."""
        self.groups, self.marginal = self.groups[:, :clusters].clone(), self.marginal[:clusters].clone()
        self.trims = False

    def assign_to_prototypes(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments to the prototypes; rows sum to 1."""
        return self.assign_points(self.whitening(features))

    def assign_points(self, points: Float[Tensor, "n axes"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments of whitened features to the prototypes."""
        similarity = F.linear(points, F.normalize(self.vectors.weight, dim=1))
        used = self.vectors.weight.any(dim=1)
        unused = ~used & used.any()  # if all images are alike, all prototypes are 0, and used equally
        return (similarity / self.temperature).masked_fill(unused, -torch.inf).softmax(dim=1)


def trim(net: nn.Module) -> None:
    """Remove the clusters that a head of prototypes does not use, if it chose their number."""
    for head in net.modules():
        if isinstance(head, Prototypes) and head.trims:
            head.keep(head.in_use)


def trim_as(net: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Remove clusters from the heads of prototypes that chose their number, down to that of saved shapes."""
    for name, head in net.named_modules():
        shape = shapes.get(f"{name}.groups")
        if isinstance(head, Prototypes) and head.trims and shape is not None and shape[1] < head.in_use:
            head.keep(shape[1])


class Whitening(nn.Module):
    """Scale features to length 1, project them to axes, and scale them to length 1 again."""

    mean: Tensor
    axes: Tensor

    def __init__(self, features: int, axes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("axes", torch.eye(axes, features))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n axes"]:
        return F.normalize((F.normalize(features, dim=1) - self.mean) @ self.axes.T, dim=1)
