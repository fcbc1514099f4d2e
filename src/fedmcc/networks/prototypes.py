"""A cluster projector with several prototypes per cluster and soft assignments by cosine similarity."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Prototypes(nn.Module):
    """Sum over the prototypes p_j of a cluster of softmax(cos(x, p_j) / temperature), with x whitened.

    The buffers hold statistics of all clients that the server computes: the whitening (initially the first
    feature axes), the cluster of each prototype (`groups`), and the share of images per cluster (`marginal`).
    """

    groups: Tensor
    marginal: Tensor

    def __init__(self, features: int, clusters: int, count: int, axes: int, temperature: float) -> None:
        super().__init__()
        self.whitening = Whitening(features, axes)
        self.vectors = nn.Linear(axes, count, bias=False)
        self.temperature = temperature
        self.register_buffer("groups", torch.eye(clusters)[torch.arange(count) % clusters])
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return self.assign_to_prototypes(features) @ self.groups

    def assign_to_prototypes(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments to the prototypes; each row sums to 1."""
        return self.assign_points(self.whitening(features))

    def assign_points(self, points: Float[Tensor, "n axes"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments of whitened features to the prototypes."""
        similarity = F.linear(points, F.normalize(self.vectors.weight, dim=1))
        return (similarity / self.temperature).softmax(dim=1)


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
