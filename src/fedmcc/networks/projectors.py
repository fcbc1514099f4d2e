"""The two projectors g_I and g_C: MLPs of one hidden layer, without normalisation."""

from torch import nn


def instance_projector(features: int, hidden: int, outputs: int) -> nn.Sequential:
    """g_I: features to the space where images are contrasted."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def cluster_projector(features: int, hidden: int, clusters: int) -> nn.Sequential:
    """g_C: features to soft assignments, each row a distribution over the clusters."""
    return nn.Sequential(*instance_projector(features, hidden, clusters), nn.Softmax(dim=1))
