"""BatchNorm in inference mode is a factor and a shift, which the convolution before it can do on its own."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

MAX_RELATIVE_ERROR = 1e-3  # relative; rounding is a hundred times smaller, a wrong fold far larger


@torch.no_grad()
def fuse_batchnorm(encoder: nn.Module, example: Float[Tensor, "n c h w"]) -> nn.Module:
    """A copy without the BatchNorms that follow a convolution; the encoder is in eval mode.

    What follows what is watched on the example. Where the copy gives other features, the encoder itself is
    returned: it uses the outcome of a convolution in more places than its BatchNorm.
    """
    copy, expected = deepcopy(encoder), encoder(example)
    for convolution, norm in _neighbours(copy, example):
        before, after = copy.get_submodule(convolution), copy.get_submodule(norm)
        assert isinstance(before, nn.Conv2d)
        assert isinstance(after, nn.BatchNorm2d)
        copy.set_submodule(convolution, fuse_conv_bn_eval(before, after))
        copy.set_submodule(norm, nn.Identity())
    apart = (copy(example) - expected).abs().max()
    return copy if apart <= MAX_RELATIVE_ERROR * expected.abs().max() else encoder


def _neighbours(encoder: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """The names of convolutions and of the BatchNorms that are given their very outcome."""
    made: dict[int, tuple[str, Tensor]] = {}  # the tensor is kept so that nothing else gets its id
    found: list[tuple[str, str]] = []
    hooks = []
    for name, module in encoder.named_modules():

        def remember(_: nn.Module, __: object, outcome: Tensor, name: str = name) -> None:
            made[id(outcome)] = name, outcome

        def look_up(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            if id(given[0]) in made:
                found.append((made[id(given[0])][0], name))

        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(remember))
        elif isinstance(module, nn.BatchNorm2d):
            hooks.append(module.register_forward_pre_hook(look_up))
    encoder(example)
    for hook in hooks:
        hook.remove()
    names = [name for pair in found for name in pair]
    return [pair for pair in found if names.count(pair[0]) == names.count(pair[1]) == 1]
