"""A network of one branch, or of two where the target follows the online branch."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Branch(nn.Module):
    """An encoder f with the projectors g_I and g_C that a method has."""

    instance_projector: nn.Module | None
    cluster_projector: nn.Module | None

    def __init__(
        self,
        encoder: nn.Module,
        instance_projector: nn.Module | None = None,
        cluster_projector: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.instance_projector = instance_projector
        self.cluster_projector = cluster_projector

    def project(self, images: Float[Tensor, "n c h w"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n k"]]:
        """z = g_I(f(x)) and y = g_C(f(x)) from one pass of the encoder."""
        assert self.instance_projector is not None
        assert self.cluster_projector is not None
        h = self.encoder(images)
        return self.instance_projector(h), self.cluster_projector(h)


class Network(nn.Module):
    """What a method trains: the online branch."""

    def __init__(self, online: Branch) -> None:
        super().__init__()
        self.online = online


class MomentumPair(Network):
    """An online branch and a target that is its exponential moving average, never its gradient's."""

    def __init__(self, online: Branch) -> None:
        super().__init__(online)
        self.target = deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move the target's parameters: m target + (1 - m) online; buffers stay its own (D12)."""
        torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1 - momentum)

    def reset_target(self) -> None:
        """Make the target a copy of the online branch, buffers included."""
        self.target.load_state_dict(self.online.state_dict())
