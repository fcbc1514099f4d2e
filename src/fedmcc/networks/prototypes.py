"""A cluster projector with several prototypes per cluster and soft assignments by cosine similarity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Member:
    """One of the sets of prototypes whose assignments are averaged."""

    count: int  # prototypes
    axes: int  # whitened axes that it uses, the first ones

    def points(self, whitened: Float[Tensor, "n axes"]) -> Float[Tensor, "n own"]:
        """The part of whitened features that it uses, as unit vectors."""
        if self.axes == whitened.shape[1]:
            return whitened
        return F.normalize(whitened[:, : self.axes], dim=1)


class Prototypes(nn.Module):
    """Mean over members of the sum over a cluster's prototypes p_j of softmax(cos(x, p_j) / temperature).

    x are the first whitened axes of the features. The buffers hold statistics of all clients that the server
    computes: the whitening (initially the first feature axes), the cluster of each prototype (`groups`), and
    the share of images per cluster (`marginal`).
    """

    groups: Tensor
    marginal: Tensor

    def __init__(self, features: int, clusters: int, members: Sequence[Member], temperature: float) -> None:
        super().__init__()
        self.members = tuple(members)
        count, axes = sum(member.count for member in members), max(member.axes for member in members)
        self.whitening = Whitening(features, axes)
        self.vectors = nn.Linear(axes, count, bias=False)
        self.temperature = temperature
        self.trims = False  # whether the last clusters are left out if they have no prototypes
        self.register_buffer("groups", torch.eye(clusters)[torch.arange(count) % clusters])
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return self.assign_to_prototypes(features) @ self.groups[:, : self.in_use]

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
        """Soft assignments to the prototypes; rows sum to 1, with an equal share for each member."""
        return self.assign_points(self.whitening(features))

    def assign_points(self, points: Float[Tensor, "n axes"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments of whitened features to the prototypes."""
        shares = []
        for rows, member in zip(rows_of(self.members), self.members, strict=True):
            directions = F.normalize(self.vectors.weight[rows, : member.axes], dim=1)
            similarity = F.linear(member.points(points), directions)
            shares.append((similarity / self.temperature).softmax(dim=1))
        return shares[0] if len(shares) == 1 else torch.cat(shares, dim=1) / len(shares)


def trim(net: nn.Module) -> None:
    """Remove the clusters that a head of prototypes does not use, if it chose their number."""
    for head in net.modules():
        if isinstance(head, Prototypes) and head.trims:
            head.keep(head.in_use)


def trim_as(net: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Remove clusters from the heads of prototypes that chose their number, down to that of saved shapes."""
    for name, head in net.named_modules():
        shape = shapes.get(f"{name}.groups")
        if isinstance(head, Prototypes) and head.trims and shape is not None and shape[1] <= head.in_use:
            head.keep(shape[1])


def rows_of(members: Sequence[Member]) -> list[slice]:
    """The rows of each member if the prototypes of all members are in one matrix."""
    ends = accumulate(member.count for member in members)
    return [slice(end - member.count, end) for end, member in zip(ends, members, strict=True)]


class Whitening(nn.Module):
    """Scale features to length 1, project them to axes of unit variance, and scale them to length 1 again."""

    mean: Tensor
    axes: Tensor

    def __init__(self, features: int, axes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("axes", torch.eye(axes, features))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n axes"]:
        return F.normalize((F.normalize(features, dim=1) - self.mean) @ self.axes.T, dim=1)
