"""A cluster projector that writes features as a non-negative combination of few vectors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Factors(nn.Module):
    """x ≈ W h with h ≥ 0: soft assignments are h divided by its sum.

    The penalty ½ ρ ((Σh)² - |h|²) favours a single non-zero entry, so that the rows of `vectors`, the columns
    of W, are centres of clusters. The buffer `penalties` has ρ and ν, the weight of ½ |h|².
    """

    penalties: Tensor
    marginal: Tensor

    def __init__(self, features: int, clusters: int, steps: int) -> None:
        super().__init__()
        self.vectors = nn.Linear(features, clusters, bias=False)
        self.steps = steps
        self.register_buffer("penalties", torch.zeros(2))
        self.register_buffer("marginal", torch.full((clusters,), 1 / clusters))

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        h = self.combinations(features, features.new_zeros(len(features), len(self.marginal)))
        h = h + torch.finfo(h.dtype).tiny  # an image without any factor belongs to all clusters equally
        return h / h.sum(dim=1, keepdim=True)

    def points(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The features themselves."""
        return features

    def combinations(
        self, features: Float[Tensor, "n d"], start: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n k"]:
        """h after some steps of projected gradient descent from `start`, which never raise the objective."""
        curvature = self.curvature(features.dtype)
        rate = 1 / torch.linalg.eigvalsh(curvature)[-1].clamp_min(torch.finfo(features.dtype).tiny)
        linear, h = features @ self.vectors.weight.T.to(features.dtype), start
        for _ in range(self.steps):
            h = (h - rate * (h @ curvature - linear)).clamp_min(0)
        return h

    def curvature(self, dtype: torch.dtype) -> Float[Tensor, "k k"]:
        """WᵀW + ρ (11ᵀ - I) + ν I, the second derivative of the objective by h."""
        vectors, (rho, nu) = self.vectors.weight.to(dtype), self.penalties.to(dtype).unbind()
        identity = torch.eye(len(vectors), dtype=dtype, device=vectors.device)
        second: Tensor = vectors @ vectors.T + rho * (1 - identity) + nu * identity
        return second
