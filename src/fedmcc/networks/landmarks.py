"""A cluster projector that assigns an image to the clusters of its nearest landmarks."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.networks.centres import squared_distances


class Landmarks(nn.Module):
    """Sum of the weights of an image's nearest landmarks, exp(-d² / (2 width²)) divided by their sum.

    The buffers hold statistics of all clients that the server computes: the width, the cluster of each
    landmark (`groups`), and the share of each cluster (`marginal`).
    """

    width: Tensor
    groups: Tensor
    marginal: Tensor

    def __init__(self, features: int, clusters: int, count: int, neighbours: int) -> None:
        super().__init__()
        self.vectors = nn.Linear(features, count, bias=False)
        self.neighbours = min(neighbours, count)
        self.register_buffer("width", torch.ones(()))
        self.register_buffer("groups", torch.eye(clusters)[torch.arange(count) % clusters])
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return self.weights(features) @ self.groups

    def points(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The features themselves."""
        return features

    def nearest(self, features: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
        """Squared distances to the nearest landmarks, in ascending order, and their indices."""
        distances = squared_distances(features, self.vectors.weight.to(features.dtype))
        smallest = distances.topk(self.neighbours, dim=1, largest=False)
        return smallest.values, smallest.indices

    def weights(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n landmarks"]:
        """Weights of the landmarks, 0 except for the nearest; each row sums to 1."""
        distances, indices = self.nearest(features)
        scale = 2 * self.width.to(features.dtype).square().clamp_min(1e-12)
        weights = (-distances / scale).softmax(dim=1)
        return weights.new_zeros(len(features), len(self.groups)).scatter(1, indices, weights)
