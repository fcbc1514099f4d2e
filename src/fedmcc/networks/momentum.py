"""Networks of one branch, or of two where the target is the moving average of the online branch."""

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
        h = self.encoder(images)
        return self.instance(h), self.assign(h)

    def instance(self, features: Rows) -> Rows:
        """z = g_I(h)."""
        assert self.instance_projector is not None
        z: Tensor = self.instance_projector(features)
        return z

    def assign(self, features: Rows) -> Rows:
        """y = g_C(h), a soft assignment per row."""
        assert self.cluster_projector is not None
        y: Tensor = self.cluster_projector(features)
        return y


class Network(nn.Module):
    """The network that a method trains; methods with a target network use a subclass.

    Parameters
    ----------
    online
        The branch that the optimiser updates and that is evaluated.

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


class MomentumPair(Network):
    """An online branch and a target that is its exponential moving average, never its gradient's."""

    def __init__(self, online: Branch) -> None:
        super().__init__(online)
        self.target = deepcopy(online).requires_grad_(False)

    def update(self, momentum: float) -> None:
        """Move the target's parameters: m target + (1 - m) online; buffers stay its own (D12)."""
        ema_update(self.target, self.online, momentum)

    def reset_target(self) -> None:
        """Make the target a copy of the online branch, buffers included."""
        self.target.load_state_dict(self.online.state_dict())


class PredictorNetwork(Network):
    """One branch and a predictor on top of it."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor


class PredictorPair(MomentumPair):
    """An online branch with a predictor on top of it, and a target without one."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """The moving average in place: m target + (1 - m) online, over parameters alone."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - momentum)


def set_cluster_projector(net: Network, head: nn.Module) -> None:
    """Give the online branch a cluster projector, and the target branch, where there is one, its copy."""
    net.online.cluster_projector = head
    target = getattr(net, "target", None)
    if target is not None:
        target.cluster_projector = deepcopy(head).requires_grad_(False)
