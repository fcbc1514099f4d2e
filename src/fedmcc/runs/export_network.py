"""The network of a run as one module from pixels to clusters, in a form that exporters can trace."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.data.decode import HeightWidth
from fedmcc.networks.huggingface import HuggingFaceEncoder
from fedmcc.networks.momentum import Branch

OUTPUTS = ("assignments", "clusters", "features")
Outputs = tuple[Float[Tensor, "n k"], Int[Tensor, " n"], Float[Tensor, "n d"]]


class ExportedNetwork(nn.Module):
    """Preprocessing, encoder, head and merges: from pixels of 0 to 255 to assignments, clusters, features."""

    merge: Tensor

    def __init__(self, branch: Branch, resize: nn.Module, merge: Float[Tensor, "k k"]) -> None:
        super().__init__()
        assert branch.cluster_projector is not None
        self.resize, self.encoder = resize, _exportable(branch.encoder)
        self.head = deepcopy(branch.cluster_projector)
        self.register_buffer("merge", merge)
        self.to("cpu").eval().requires_grad_(False)

    def forward(self, images: UInt8[Tensor, "n c h w"]) -> Outputs:
        features = self.encoder(self.resize(images.float() / 255))
        assignments = self.head(features) @ self.merge
        return assignments, assignments.argmax(dim=1), features


class Resize(nn.Module):
    """The resizing of `Views.plain` as two matrix products: it is linear in rows and in columns."""

    rows: Tensor
    columns: Tensor

    def __init__(self, sides: HeightWidth, size: int) -> None:
        super().__init__()
        for name, side in zip(("rows", "columns"), sides, strict=True):
            self.register_buffer(name, _weights(side, size))

    def forward(self, pixels: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c size size"]:
        return (self.rows @ pixels @ self.columns.T).clamp(0, 1)


def resizing(sides: HeightWidth, size: int | None) -> nn.Module:
    """The step from decoded images to images of the network's size."""
    return nn.Identity() if size is None or sides == (size, size) else Resize(sides, size)


def merging(clusters: int, merged: Mapping[int, int]) -> Float[Tensor, "k k"]:
    """The matrix that adds the columns of merged clusters to those of the clusters they went into."""
    matrix = torch.zeros(clusters, clusters)
    for cluster in range(clusters):
        matrix[cluster, merged.get(cluster, cluster)] = 1
    return matrix


def plain_convolutions(encoder: nn.Module) -> nn.Module:
    """Replace convolutions by their plain form, whose shapes do not depend on the batch."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.__class__ = nn.Conv2d
    return encoder


class WholeBatch(nn.Module):
    """A frozen encoder that takes all images at once, in which its model is a module like any other."""

    def __init__(self, encoder: HuggingFaceEncoder) -> None:
        super().__init__()
        self.frozen, self.model = encoder, encoder.model

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        return self.frozen.encode(self.frozen.normalise(images))


def _exportable(encoder: nn.Module) -> nn.Module:
    if isinstance(encoder, HuggingFaceEncoder):
        return WholeBatch(encoder)
    return plain_convolutions(deepcopy(encoder))


def _weights(side: int, size: int) -> Float[Tensor, "size side"]:
    """The weight of each input pixel for each output pixel, along one axis."""
    identity = torch.eye(side)[None, None]
    return F.interpolate(identity, (size, side), mode="bilinear", antialias=True)[0, 0]
