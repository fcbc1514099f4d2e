import pytest
import torch
from torch import nn

from fedmcc.cli.app import _is_out_of_memory
from fedmcc.errors import InputError
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise


def convnet(size: int, channels: int = 1, **options: object) -> nn.Module:
    encoder = ConvNetOptions(**options).build(channels, size)
    initialise(encoder, torch.Generator().manual_seed(0))
    return encoder


def convolutions(encoder: nn.Module) -> list[tuple[int, int]]:
    """Output channels and kernel size of each convolution."""
    return [
        (module.out_channels, module.kernel_size[0])
        for module in encoder.modules()
        if isinstance(module, nn.Conv2d)
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (8, [(16, 3), (128, 4)]),
        (16, [(16, 3), (32, 3), (128, 4)]),
        (20, [(16, 3), (32, 3), (64, 3), (128, 2)]),
        (28, [(16, 3), (32, 3), (64, 3), (128, 3)]),
        (32, [(16, 3), (32, 3), (64, 3), (128, 4)]),
        (224, [(16, 3), (32, 3), (64, 3), (128, 3), (128, 3), (128, 3), (128, 3)]),
    ],
)
def test_stages_follow_the_image_size(size: int, expected: list[tuple[int, int]]) -> None:
    assert convolutions(convnet(size)) == expected


def test_pooling_before_or_after_relu_is_bit_identical() -> None:
    pooled, rectified = convnet(28, width=4), convnet(28, width=4)
    for stage in list(rectified.stages)[:-1]:
        assert isinstance(stage[2], nn.MaxPool2d)
        stage[2], stage[3] = stage[3], stage[2]
    images = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    for encoder in (pooled, rectified):
        (encoder(images) * torch.linspace(-1, 1, 32)).sum().backward()
    assert pooled(images).equal(rectified(images))
    pairs = zip(pooled.parameters(), rectified.parameters(), strict=True)
    assert all(one.grad.equal(other.grad) for one, other in pairs)


@pytest.mark.parametrize("size", [8, 9, 13, 28, 32, 45, 64])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_number_of_features_is_as_declared(size: int, norm: str) -> None:
    encoder = convnet(size, channels=3, width=4, norm=norm)
    assert encoder(torch.rand(2, 3, size, size)).shape == (2, 32)
    assert encoder.features == 32


@pytest.mark.parametrize("size", [8, 15, 16, 28, 31, 32, 47])
@pytest.mark.parametrize("corner", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_features_depend_on_every_corner(size: int, corner: tuple[int, int]) -> None:
    encoder = convnet(size).eval()
    images = torch.rand(8, 1, size, size, generator=torch.Generator().manual_seed(1))
    changed = images.clone()
    changed[:, :, corner[0], corner[1]] += 10
    assert not torch.allclose(encoder(images), encoder(changed), atol=1e-4)


def test_group_norm_treats_images_independently() -> None:
    encoder = convnet(28, norm="group").train()
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-4, atol=1e-5)


def test_group_norm_leaves_differences_in_the_last_map_of_one_pixel() -> None:
    features = convnet(16, norm="group")(torch.rand(2, 1, 16, 16))
    assert features.std(dim=1).min() > 0.1


def test_gradient_reaches_every_parameter() -> None:
    encoder = convnet(28)
    encoder(torch.rand(8, 1, 28, 28)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_error_for_small_images_gives_the_minimum_size() -> None:
    with pytest.raises(InputError, match=r"Images of 7 pixels .* views\.size to 8"):
        ConvNetOptions().build(1, 7)


@pytest.mark.parametrize("width", [2**40, 2**59, 2**62])
def test_a_width_that_no_memory_holds_is_an_error_of_memory(width: int) -> None:
    with pytest.raises(RuntimeError) as error:
        ConvNetOptions(width=width).build(1, 28)
    assert _is_out_of_memory(error.value)


def test_width_of_zero_is_rejected() -> None:
    with pytest.raises(InputError, match=r"encoder\.width is 0"):
        ConvNetOptions(width=0).build(1, 28)
