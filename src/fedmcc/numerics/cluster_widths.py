"""How widely the rows of each cluster are spread, the temperatures of PCL's prototypes."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

SMOOTHING = 10  # images that keep small clusters from seeming dense
PERCENTILES = (0.1, 0.9)  # to which the widths are limited


def cluster_widths(
    z: Float[Tensor, "n d"], centres: Float[Tensor, "k d"], labels: Int64[Tensor, " n"], temperature: float
) -> Float[Tensor, " k"]:
    """Mean distance of each cluster's rows, smaller for larger clusters; limited, with `temperature` as mean.

    A cluster of one row has the largest width.
    """
    sizes = labels.bincount(minlength=len(centres)).to(z)
    distances = torch.zeros_like(sizes).index_add(0, labels, (z - centres[labels]).norm(dim=1))
    phi = distances / (sizes.clamp_min(1) * (sizes + SMOOTHING).log())
    phi = torch.where(sizes > 1, phi, phi.max())
    low, high = (phi.quantile(share) for share in PERCENTILES)
    phi = phi.clamp(low, high)
    return temperature * phi / phi.mean().clamp_min(torch.finfo(phi.dtype).tiny)
