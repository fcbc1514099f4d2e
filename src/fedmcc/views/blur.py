"""Gaussian blur with a sigma per sample."""

import torch
from jaxtyping import Float
from torch import Tensor


def blur(pixels: Float[Tensor, "n c h w"], sigma: Float[Tensor, " n"]) -> None:
    """Blur in place the samples whose sigma is above 0; at the borders the weights inside count alone.

    The two passes are matrix products: for images up to 224 px they beat grouped convolutions.
    """
    rows = sigma.nonzero()[:, 0]
    if len(rows) == 0:
        return
    widths, rows = sigma[rows].to(pixels.device), rows.to(pixels.device)
    chosen = pixels[rows]
    n, channels, height, width = chosen.shape
    across = chosen.view(n, channels * height, width) @ _weights(widths, width).mT
    down = _weights(widths, height)[:, None] @ across.view(n, channels, height, width)
    pixels[rows] = down.clamp_(0, 1)  # the weights sum to 1 but for rounding


def _weights(sigma: Float[Tensor, " n"], side: int) -> Float[Tensor, "n side side"]:
    """Rows of Gaussian weights about each pixel, summing to 1."""
    place = torch.arange(side, device=sigma.device, dtype=sigma.dtype)
    distance = (place[:, None] - place) / sigma[:, None, None]
    return torch.softmax(-(distance**2) / 2, dim=2)
