import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fedmcc.networks import small_maps
from fedmcc.networks.fuse_batchnorm import fuse_batchnorm
from fedmcc.networks.resnet import ResNet18
from fedmcc.networks.small_maps import Conv2d

pytestmark = pytest.mark.slow  # takes seconds

CASES = {  # kernel, stride, padding, height, width
    "1x1": (3, 1, 1, 1, 1),
    "1x1, stride 2": (3, 2, 1, 1, 1),
    "2x2 to 1x1": (3, 2, 1, 2, 2),
    "2x2": (3, 1, 1, 2, 2),
    "3x3 to 2x2": (3, 2, 1, 3, 3),
    "4x4 to 2x2": (3, 2, 1, 4, 4),
    "2x1": (3, 1, 1, 2, 1),
    "whole map": (4, 1, 0, 4, 4),
    "stem": (7, 2, 3, 4, 3),
    "1x1 kernel": (1, 1, 0, 2, 2),
    "1x1 kernel, stride 2": (1, 2, 0, 4, 3),
}


def pair(
    kernel: int, stride: int, padding: int, inputs: int = 5, outputs: int = 6
) -> tuple[Conv2d, nn.Conv2d]:
    """A convolution with products where they pay, and torch's with equal weights."""
    torch.manual_seed(0)
    ours, plain = (
        Conv2d(inputs, outputs, kernel, stride, padding),
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
    )
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def gradients(conv: nn.Conv2d, maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and the gradients of input and weight of a sum in which every output weighs differently."""
    maps = maps.detach().clone().requires_grad_()
    output = conv(maps)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    (output * weights).sum().backward()
    assert maps.grad is not None
    assert conv.weight.grad is not None
    return output.detach(), maps.grad, conv.weight.grad


@pytest.fixture
def products_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No case may fall back to torch's convolution."""
    monkeypatch.setattr(nn.Conv2d, "forward", lambda *_: pytest.fail("a convolution was computed"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_products_equal_the_convolution(case: str, order: torch.memory_format) -> None:
    kernel, stride, padding, height, width = CASES[case]
    ours, plain = (conv.double().to(memory_format=order) for conv in pair(kernel, stride, padding))
    maps = torch.randn(7, 5, height, width, dtype=torch.float64).to(memory_format=order)
    for found, expected in zip(gradients(ours, maps), gradients(plain, maps), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("products_only")
@pytest.mark.parametrize("case", CASES)
def test_small_maps_are_products(case: str) -> None:
    kernel, stride, padding, height, width = CASES[case]
    Conv2d(5, 6, kernel, stride, padding)(torch.zeros(2, 5, height, width))


def test_larger_maps_are_the_same_bits_as_the_convolution() -> None:
    ours, plain = pair(3, 1, 1)
    maps = torch.randn(4, 5, 3, 8)
    assert torch.equal(ours(maps), plain(maps))


def test_taps_that_meet_padding_alone_get_a_zero_gradient_in_the_layout_of_the_weight() -> None:
    ours = pair(3, 1, 1)[0].to(memory_format=torch.channels_last)
    _, _, gradient = gradients(ours, torch.randn(4, 5, 1, 1))
    assert gradient.shape == ours.weight.shape
    assert gradient.stride() == ours.weight.stride()
    assert gradient[:, :, 1, 1].abs().min() > 0
    assert torch.equal(gradient.count_nonzero(), gradient[:, :, 1, 1].count_nonzero())


def test_adam_with_weight_decay_moves_all_taps_as_with_the_convolution() -> None:
    trained = []
    for conv in (conv.double().to(memory_format=torch.channels_last) for conv in pair(3, 2, 1)):
        optimizer = torch.optim.Adam(conv.parameters(), 0.1, weight_decay=0.1, fused=True)
        for step in range(3):
            optimizer.zero_grad()
            gradients(conv, torch.randn(4, 5, 2, 2, generator=torch.Generator().manual_seed(step)).double())
            optimizer.step()
        trained.append(conv.weight.detach())
    torch.testing.assert_close(*trained, rtol=1e-9, atol=1e-9)


def test_the_output_has_the_strides_of_a_channels_last_convolution() -> None:
    for height, stride in ((1, 1), (2, 1), (4, 2)):
        ours, plain = (conv.to(memory_format=torch.channels_last) for conv in pair(3, stride, 1))
        maps = torch.randn(4, 5, height, height).to(memory_format=torch.channels_last)
        assert ours(maps).stride() == plain(maps).stride()


def test_bfloat16_of_autocast_reaches_the_products() -> None:
    ours, plain = pair(3, 1, 1)
    maps = torch.randn(4, 5, 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(maps)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain(maps), rtol=0.05, atol=0.05)


COMPILED = """
import torch
from fedmcc.networks.small_maps import Conv2d
conv, maps = Conv2d(5, 6, 3, 1, 1), torch.randn(4, 5, 2, 2)
assert torch.equal(torch.compile(conv, backend="eager", fullgraph=True)(maps), conv(maps))
"""


def test_the_layer_is_traced_as_one_graph() -> None:
    # In a process of its own, where no types are checked: the checks cannot be traced.
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_a_copy_gives_the_same_bits() -> None:
    ours, maps = pair(3, 1, 1)[0], torch.randn(4, 5, 2, 2)
    assert torch.equal(deepcopy(ours)(maps), ours(maps))


def test_a_resnet_of_products_trains_as_one_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ours = ResNet18().build(3, 32).double()
    plain, images = deepcopy(ours), torch.randn(6, 3, 32, 32, dtype=torch.float64)
    ours(images).square().sum().backward()
    monkeypatch.setattr(small_maps, "MAX_POSITIONS", 0)
    plain(images).square().sum().backward()
    for own, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-6, atol=1e-9)


def test_batchnorm_folds_into_products() -> None:
    torch.manual_seed(0)
    encoder, images = ResNet18().build(3, 32).eval(), torch.randn(4, 3, 32, 32)
    copy = fuse_batchnorm(encoder, images)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules())
    torch.testing.assert_close(copy(images), encoder(images), rtol=1e-4, atol=1e-5)
