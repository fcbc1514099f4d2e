"""A momentum pair with a queue of the target's latest projections."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.randomness import generator


class MomentumQueue(MomentumPair):
    """Keys enter the queue at `position` and overwrite the oldest; it starts with random directions."""

    queue: Tensor
    position: Tensor

    def __init__(self, online: Branch, size: int, projections: int) -> None:
        super().__init__(online)
        drawn = torch.randn(size, projections, generator=generator(0, "queue"))
        self.register_buffer("queue", F.normalize(drawn, dim=1))
        self.register_buffer("position", torch.tensor(0))

    @torch.no_grad()
    def enqueue(self, keys: Float[Tensor, "n d"]) -> None:
        """The newest keys replace the oldest; the queue need not be a multiple of their number."""
        places = (self.position + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        latest = slice(-len(self.queue), None)  # more keys than places: only the last of them stay
        self.queue[places[latest]] = keys[latest].to(self.queue.dtype)
        self.position.copy_((self.position + len(keys)) % len(self.queue))
