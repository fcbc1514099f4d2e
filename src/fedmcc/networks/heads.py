"""Projectors g_I and g_C, predictors, and the choice between batch and group normalisation (D11, D17)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Literal["batch", "group"]

PROJECTIONS = 128  # d_1, width of the space where images are contrasted
MAX_GROUPS = 32
MIN_GROUP_CHANNELS = 16


def instance_projector(features: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build g_I, a two-layer projector from features to the space where images are contrasted.

    Parameters
    ----------
    features
        Number of inputs.
    hidden
        Width of the hidden layer.
    outputs
        Number of outputs.

    Returns
    -------
    nn.Sequential
        The projector.

    Examples
    --------
    >>> import torch
    >>> from fedmcc import instance_projector
    >>> instance_projector(features=64, hidden=64, outputs=16)(torch.zeros(5, 64)).shape
    torch.Size([5, 16])
    """
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def cluster_projector(features: int, hidden: int, clusters: int) -> nn.Sequential:
    """Build g_C, a two-layer projector from features to soft assignments.

    Parameters
    ----------
    features
        Number of inputs.
    hidden
        Width of the hidden layer.
    clusters
        Number of clusters.

    Returns
    -------
    nn.Sequential
        The projector; each row of its output is a distribution over the clusters.

    Examples
    --------
    >>> import torch
    >>> from fedmcc import cluster_projector
    >>> cluster_projector(features=64, hidden=64, clusters=4)(torch.zeros(5, 64)).sum().item()
    5.0
    """
    return nn.Sequential(*instance_projector(features, hidden, clusters), nn.Softmax(dim=1))


def normalised_mlp(inputs: int, hidden: int, outputs: int, norm: Norm) -> nn.Sequential:
    """Projector or predictor of the BYOL family, with a normalised hidden layer."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), _normalise(hidden, norm), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


def normalised_head(features: int, hidden: int, clusters: int, norm: Norm) -> nn.Sequential:
    """Two layers, each normalised: no cluster can have the largest logit for all images of a batch."""
    return nn.Sequential(
        nn.Linear(features, hidden),
        _normalise(hidden, norm),
        nn.ReLU(),
        nn.Linear(hidden, clusters),
        _normalise(clusters, norm),
        nn.Softmax(dim=1),
    )


def _normalise(width: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm1d(width) if norm == "batch" else nn.GroupNorm(group_count(width), width)


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """Build a normalisation layer for feature maps with this number of channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(group_count(channels), channels)


def group_count(channels: int) -> int:
    """Largest number of groups, at most 32, that divides the channels into groups of at least 16.

    Fewer than 16 channels form one group.
    """
    # A group of one channel would turn a 1x1 map into zeros, each value minus its own mean.
    largest = max(1, min(MAX_GROUPS, channels // MIN_GROUP_CHANNELS))
    return next(count for count in range(largest, 0, -1) if channels % count == 0)


class Heads(nn.Module):
    """Several linear heads with soft assignments; `forward` uses the head `best`."""

    best: Tensor

    def __init__(self, features: int, clusters: int, count: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, count * clusters)
        self.clusters = clusters
        self.register_buffer("best", torch.tensor(0))

    def all(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n heads k"]:
        """Soft assignments by every head."""
        logits: Tensor = self.linear(features)
        return logits.view(len(features), -1, self.clusters).softmax(dim=2)

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return self.all(features).index_select(1, self.best[None])[:, 0]


class Gate(nn.Module):
    """Soft assignments by the cosine with fixed directions, one per cluster, as far apart as possible."""

    corners: Tensor

    def __init__(self, features: int, clusters: int, width: int, temperature: float) -> None:
        super().__init__()
        width = max(width, clusters)  # the directions need one dimension less than there are clusters
        self.linear, self.temperature = nn.Linear(features, width), temperature
        self.register_buffer("corners", simplex(clusters, width), persistent=False)

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        logits = F.normalize(self.linear(features), dim=1) @ self.corners.T / self.temperature
        return logits.softmax(dim=1)


def simplex(count: int, width: int) -> Float[Tensor, "count width"]:
    """Unit vectors whose inner products are all -1 / (count - 1), the corners of a simplex."""
    corners = torch.zeros(count, width)
    corners[:, :count] = torch.eye(count) - 1 / count
    return F.normalize(corners, dim=1)
