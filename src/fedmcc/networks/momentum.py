"""Networks with an online branch and, optionally, a target branch that is its moving average."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

Images = Float[Tensor, "n c h w"]
Rows = Float[Tensor, "n _"]


class Branch(nn.Module):
    """An encoder f with the projectors g_I and g_C, if a method has them.

    Parameters
    ----------
    encoder
        f, from images to rows of features.
    instance_projector
        g_I, from features to the space where images are contrasted.
    cluster_projector
        g_C, from features to soft assignments; a branch without it is evaluated by k-means on its features.

    Examples
    --------
    >>> import torch
    >>> from fedmcc import ENCODERS, Branch, cluster_projector, instance_projector
    >>> encoder = ENCODERS["convnet"]().build(channels=1, size=8)
    >>> n = encoder.features
    >>> branch = Branch(encoder, instance_projector(n, n, 16), cluster_projector(n, n, 10))
    >>> z, y = branch.project(torch.zeros(5, 1, 8, 8))
    >>> z.shape, y.shape
    (torch.Size([5, 16]), torch.Size([5, 10]))
    """

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

    def project(self, images: Images) -> tuple[Rows, Rows]:
        """z = g_I(f(x)) and y = g_C(f(x)) from one pass of the encoder."""
        features = self.encoder(images)
        return self.instance(features), self.assign(features)

    def instance(self, features: Rows) -> Rows:
        """z = g_I(h)."""
        assert self.instance_projector is not None
        projections: Tensor = self.instance_projector(features)
        return projections

    def assign(self, features: Rows) -> Rows:
        """y = g_C(h), one soft assignment per row."""
        assert self.cluster_projector is not None
        assignments: Tensor = self.cluster_projector(features)
        return assignments


class Network(nn.Module):
    """The network that a method trains; methods with a target network use a subclass.

    Parameters
    ----------
    online
        The branch that the optimiser updates and that is evaluated.

    Attributes
    ----------
    notes
        What the client that trains stores about its images in this stage. It is not part of `state_dict`, so
        that it stays at the client.
    copy_of
        For each image of the client that trains, the number of the first image of equal bytes. None: no image
        is a copy of another.

    Examples
    --------
    >>> from fedmcc import ENCODERS, Branch, Network
    >>> net = Network(Branch(ENCODERS["convnet"]().build(channels=1, size=8)))
    >>> net.online.cluster_projector is None
    True
    """

    def __init__(self, online: Branch) -> None:
        super().__init__()
        self.online = online
        self.notes: dict[str, Tensor] = {}
        self.copy_of: Tensor | None = None


class MomentumPair(Network):
    """An online branch and a target branch, its exponential moving average, which receives no gradient."""

    def __init__(self, online: Branch) -> None:
        super().__init__(online)
        self.target = deepcopy(online).requires_grad_(False)

    def update(self, momentum: float) -> None:
        """Set the target's parameters to m target + (1 - m) online; its buffers are unchanged (D12)."""
        ema_update(self.target, self.online, momentum)

    def reset_target(self) -> None:
        """Copy parameters and buffers of the online branch to the target."""
        self.target.load_state_dict(self.online.state_dict())


class PredictorNetwork(Network):
    """An online branch with a predictor on top."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor


class PredictorPair(MomentumPair):
    """An online branch with a predictor on top, and a target branch without a predictor."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """Update the moving average m target + (1 - m) online in place; buffers are unchanged."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - momentum)


def set_cluster_projector(net: Network, head: nn.Module) -> None:
    """Set the cluster projector of the online branch, and a copy of it in the target branch, if any."""
    net.online.cluster_projector = head
    target = getattr(net, "target", None)
    if target is not None:
        target.cluster_projector = deepcopy(head).requires_grad_(False)
