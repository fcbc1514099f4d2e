"""Gaussian blur with a sigma per sample."""

import torch
from jaxtyping import Float
from torch import Tensor


def blur(pixels: Float[Tensor, "n c h w"], sigma: Float[Tensor, " n"]) -> None:
    """Blur the samples with a sigma above 0, in place; at the border, only pixels inside the image count.

    The two passes are matrix products, which are faster than grouped convolutions up to 224 pixels.
    """
    rows = sigma.nonzero()[:, 0]
    if len(rows) == 0:
        return
    widths, rows = sigma[rows].to(pixels.device), rows.to(pixels.device)
    selected = pixels[rows]
    count, channels, height, width = selected.shape
    across = selected.view(count, channels * height, width) @ _weights(widths, width).mT
    blurred = _weights(widths, height)[:, None] @ across.view(count, channels, height, width)
    pixels[rows] = blurred.clamp_(0, 1)  # rounding may exceed the range, although the weights sum to 1


def _weights(sigma: Float[Tensor, " n"], side: int) -> Float[Tensor, "n side side"]:
    """Gaussian weights around each pixel; every row sums to 1."""
    position = torch.arange(side, device=sigma.device, dtype=sigma.dtype)
    distance = (position[:, None] - position) / sigma[:, None, None]
    return torch.softmax(-(distance**2) / 2, dim=2)
