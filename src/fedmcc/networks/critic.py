"""A network that decides whether feature maps and features come from the same image."""

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.networks.momentum import Branch, Network


class Critic(nn.Module):
    """1x1 convolutions over maps joined with features at every place; the mean over the places."""

    def __init__(self, channels: int, features: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels + features, width, 1, bias=False)
        self.second = nn.Conv2d(width, width, 1, bias=False)
        self.last = nn.Conv2d(width, 1, 1, bias=False)

    def forward(self, maps: Float[Tensor, "n c h w"], features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        places = features[:, :, None, None].expand(-1, -1, *maps.shape[2:])
        joined = torch.cat([maps, places], dim=1)
        scores: Tensor = self.last(F.relu(self.second(F.relu(self.first(joined)))))
        return scores.mean(dim=(1, 2, 3))


class CriticNetwork(Network):
    """A branch, and a critic that compares feature maps with features."""

    def __init__(self, online: Branch, critic: Critic) -> None:
        super().__init__(online)
        self.critic = critic


def map_channels(encoder: Any) -> int:
    """The number of channels of the encoder's feature maps, found without computing them."""
    if not hasattr(encoder, "maps"):
        raise InputError(
            "This encoder has no feature maps: choose another encoder, or set method.information to 0."
        )
    shape = deepcopy(encoder).to("meta").eval().maps(torch.empty(1, *encoder.shape, device="meta")).shape
    return int(shape[1])
