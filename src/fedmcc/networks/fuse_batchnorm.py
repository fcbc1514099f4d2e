"""Fusion of BatchNorm in eval mode, a scale and a shift, into the preceding convolution."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

MAX_RELATIVE_ERROR = 1e-3  # rounding errors are a hundred times smaller, those of a wrong fusion far larger


@torch.no_grad()
def fuse_batchnorm(encoder: nn.Module, example: Float[Tensor, "n c h w"]) -> nn.Module:
    """Copy an encoder in eval mode, with each BatchNorm fused into the convolution before it.

    The pairs are recorded while the example is encoded. If the copy gives different features, the encoder
    itself is returned: it uses the output of a convolution elsewhere than in its BatchNorm.
    """
    copy, expected = deepcopy(encoder), encoder(example)
    for convolution, norm in _find_pairs(copy, example):
        before, after = copy.get_submodule(convolution), copy.get_submodule(norm)
        assert isinstance(before, nn.Conv2d)
        assert isinstance(after, nn.BatchNorm2d)
        copy.set_submodule(convolution, fuse_conv_bn_eval(before, after))
        copy.set_submodule(norm, nn.Identity())
    error = (copy(example) - expected).abs().max()
    return copy if error <= MAX_RELATIVE_ERROR * expected.abs().max() else encoder


def _find_pairs(encoder: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Names of each convolution and of the BatchNorm that takes its output unchanged."""
    outputs: dict[int, tuple[str, Tensor]] = {}  # holds the tensors, so that their ids stay unique
    pairs: list[tuple[str, str]] = []
    hooks = []
    for name, module in encoder.named_modules():

        def record(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
            outputs[id(output)] = name, output

        def match(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
            if id(inputs[0]) in outputs:
                pairs.append((outputs[id(inputs[0])][0], name))

        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(record))
        elif isinstance(module, nn.BatchNorm2d):
            hooks.append(module.register_forward_pre_hook(match))
    encoder(example)
    for hook in hooks:
        hook.remove()
    names = [name for pair in pairs for name in pair]
    return [pair for pair in pairs if names.count(pair[0]) == names.count(pair[1]) == 1]
