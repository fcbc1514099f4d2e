"""A cluster projector with one centre per cluster and soft assignments by Euclidean distance."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Centres(nn.Module):
    """q_k proportional to (1 + |z - c_k|² / alpha)^(-(alpha + 1) / 2), a Student-t distribution.

    The nearest centre has the largest assignment, as in k-means. The buffer `marginal` has the share of each
    cluster in the images of all clients.
    """

    marginal: Tensor

    def __init__(self, features: int, clusters: int, unit: bool = False, alpha: float = 1.0) -> None:
        super().__init__()
        self.vectors = nn.Linear(features, clusters, bias=False)
        self.unit, self.alpha = unit, alpha
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        distances = squared_distances(self.points(features), self.vectors.weight)
        q = (1 + distances / self.alpha) ** (-(self.alpha + 1) / 2)
        return q / q.sum(dim=1, keepdim=True)

    def points(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The features, scaled to length 1 if `unit`."""
        return F.normalize(features, dim=1) if self.unit else features


def squared_distances(points: Float[Tensor, "n d"], centres: Float[Tensor, "k d"]) -> Float[Tensor, "n k"]:
    """|z - c|² for every point and centre."""
    lengths = points.square().sum(dim=1, keepdim=True) + centres.square().sum(dim=1)
    return (lengths - 2 * points @ centres.T).clamp_min(0)
