"""The two normalisations of an encoder's feature maps: over the batch, or within each image (D11, D17)."""

from typing import Literal

from torch import nn

Norm = Literal["batch", "group"]

MOST_GROUPS = 32
GROUP_CHANNELS = 16


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """A normalisation layer for this many channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(groups(channels), channels)


def groups(channels: int) -> int:
    """The most groups, at most 32, that divide the channels and leave each at least 16 of them."""
    # A group of one channel would erase a 1x1 map: each value minus itself. Hence 16 or all there are.
    most = max(1, min(MOST_GROUPS, channels // GROUP_CHANNELS))
    return next(count for count in range(most, 0, -1) if channels % count == 0)
