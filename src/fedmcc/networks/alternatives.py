"""Several cluster heads of one encoder, of which one assigns the images."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Alternatives(nn.Module):
    """Cluster heads for the same features; `best` is the number of the one that is used."""

    best: Tensor

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.register_buffer("best", torch.tensor(0))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return torch.stack([head(features) for head in self.heads])[self.best]
