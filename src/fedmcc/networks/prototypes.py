"""A cluster projector of prototypes: soft assignments by cosine similarity to one vector per cluster."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Prototypes(nn.Module):
    """softmax(cos(h, p_j) / temperature) over the clusters j; what k-means finds can be put in as it is.

    Beside the vectors it keeps what the server knows of all clients: cluster shares and number of images.
    """

    marginal: Tensor
    samples: Tensor

    def __init__(self, features: int, clusters: int, temperature: float) -> None:
        super().__init__()
        self.vectors = nn.Linear(features, clusters, bias=False)
        self.temperature = temperature
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        similarity = F.linear(F.normalize(features, dim=1), F.normalize(self.vectors.weight, dim=1))
        return (similarity / self.temperature).softmax(dim=1)
