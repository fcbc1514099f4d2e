"""A cluster projector of prototypes: soft assignments by cosine similarity, several vectors per cluster."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Prototypes(nn.Module):
    """The sum over a cluster's prototypes p_j of softmax(cos(x, p_j) / temperature), x on whitened axes.

    Beside the vectors it keeps what the server knows of all clients: the axes (first those of the features
    themselves), the cluster that each prototype belongs to, and the share of the images in each cluster.
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
        return self.similar(features) @ self.groups

    def similar(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n prototypes"]:
        """Soft assignments to the prototypes."""
        similarity = F.linear(self.whitening(features), F.normalize(self.vectors.weight, dim=1))
        return (similarity / self.temperature).softmax(dim=1)


class Whitening(nn.Module):
    """Features of length 1, taken to axes on which all have variance 1, and to length 1 again."""

    mean: Tensor
    axes: Tensor

    def __init__(self, features: int, axes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("axes", torch.eye(axes, features))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n axes"]:
        return F.normalize((F.normalize(features, dim=1) - self.mean) @ self.axes.T, dim=1)
