"""Projectors g_I and g_C and predictors: MLPs of one hidden layer, normalised or not."""

from torch import nn

from fedmcc.networks.normalisation import Norm, groups


def instance_projector(features: int, hidden: int, outputs: int) -> nn.Sequential:
    """g_I: features to the space where images are contrasted."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def cluster_projector(features: int, hidden: int, clusters: int) -> nn.Sequential:
    """g_C: features to soft assignments, each row a distribution over the clusters."""
    return nn.Sequential(*instance_projector(features, hidden, clusters), nn.Softmax(dim=1))


def normalised_mlp(inputs: int, hidden: int, outputs: int, norm: Norm) -> nn.Sequential:
    """The projector or predictor of the BYOL family: its hidden layer is normalised."""
    normalise = nn.BatchNorm1d(hidden) if norm == "batch" else nn.GroupNorm(groups(hidden), hidden)
    return nn.Sequential(
        nn.Linear(inputs, hidden), normalise, nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )
