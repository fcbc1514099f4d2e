"""The network of a run as one module from pixels to clusters, in a form that exporters can trace."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.data.decode import HeightWidth
from fedmcc.evaluation.calibration import MIN_ASSIGNMENT
from fedmcc.evaluation.splitting import Split
from fedmcc.networks.frozen import FrozenModel
from fedmcc.networks.momentum import Branch
from fedmcc.runs.clusters import Edits

OUTPUTS = ("assignments", "clusters", "features")
Outputs = tuple[Float[Tensor, "n k"], Int[Tensor, " n"], Float[Tensor, "n d"]]


class ExportedNetwork(nn.Module):
    """Preprocessing, encoder and corrected head: from pixels of 0 to 255 to what OUTPUTS names."""

    def __init__(self, branch: Branch, resize: nn.Module, edits: Edits, temperature: float = 1.0) -> None:
        super().__init__()
        features = branch.encoder.features
        assert branch.cluster_projector is not None
        assert isinstance(features, int)
        self.resize, self.encoder = resize, _exportable(branch.encoder)
        self.head = CorrectedHead(deepcopy(branch.cluster_projector), features, edits, temperature)
        self.to("cpu").eval().requires_grad_(False)

    def forward(self, images: UInt8[Tensor, "n c h w"]) -> Outputs:
        outputs: Outputs = self.head(self.encoder(self.resize(images.float() / 255)))
        return outputs


class CorrectedHead(nn.Module):
    """A head with the corrections of the user, from features to assignments, clusters and features.

    The assignments are calibrated by the temperature; the clusters are those of the head before that.
    """

    def __init__(self, head: nn.Module, features: int, edits: Edits, temperature: float) -> None:
        super().__init__()
        self.head, self.temperature = head.to("cpu").eval(), temperature
        count = self.head(torch.zeros(1, features)).shape[1]
        self.corrections = nn.ModuleList()
        for split in edits.splits:
            self.corrections.append(Division(split, count))
            count += len(split.parts) - 1
        self.corrections.append(Merge(edits.merged, count))

    def forward(self, features: Float[Tensor, "n d"]) -> Outputs:
        by_head = self.head(features)
        calibrated = (by_head.clamp_min(MIN_ASSIGNMENT).log() / self.temperature).softmax(dim=1)
        clusters = self._correct(by_head, features).argmax(dim=1)
        return self._correct(calibrated, features), clusters, features

    def _correct(self, assignments: Tensor, features: Tensor) -> Tensor:
        for correct in self.corrections:
            assignments = correct(assignments, features)
        return assignments


class Merge(nn.Module):
    """Adds the columns of merged clusters to those of the clusters that they went into."""

    matrix: Tensor

    def __init__(self, merged: Mapping[int, int], clusters: int) -> None:
        super().__init__()
        self.register_buffer("matrix", merging(clusters, merged))

    def forward(
        self, assignments: Float[Tensor, "n k"], features: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n k"]:
        return assignments @ self.matrix


class Division(nn.Module):
    """Gives the assignment to a cluster to the part with the nearest centre, in new columns."""

    centres: Tensor

    def __init__(self, split: Split, clusters: int) -> None:
        super().__init__()
        self.before, self.cluster = Merge(split.merged, clusters), split.parts[0]
        self.register_buffer("centres", torch.tensor(split.centres))

    def forward(
        self, assignments: Float[Tensor, "n k"], features: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n more"]:
        assignments = self.before(assignments, features)
        nearest = (F.normalize(features, dim=1) @ self.centres.T).argmax(dim=1, keepdim=True)
        chosen = (nearest == torch.arange(len(self.centres))).to(assignments.dtype)
        shares = chosen * assignments[:, self.cluster, None]
        first, last = assignments[:, : self.cluster], assignments[:, self.cluster + 1 :]
        return torch.cat([first, shares[:, :1], last, shares[:, 1:]], dim=1)


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

    def __init__(self, encoder: FrozenModel) -> None:
        super().__init__()
        self.frozen, self.model = encoder, encoder.model

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        return self.frozen.encode(self.frozen.normalise(images))


def _exportable(encoder: nn.Module) -> nn.Module:
    if isinstance(encoder, FrozenModel):
        return WholeBatch(encoder)
    return plain_convolutions(deepcopy(encoder))


def _weights(side: int, size: int) -> Float[Tensor, "size side"]:
    """The weight of each input pixel for each output pixel, along one axis."""
    identity = torch.eye(side)[None, None]
    return F.interpolate(identity, (size, side), mode="bilinear", antialias=True)[0, 0]
