"""The effect of each parameter on the pixels, compared with slow computations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from fedmcc.numerics.randomness import generator
from fedmcc.views import Parameters, Views

LUMA = (0.299, 0.587, 0.114)


def noise(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator(5, "noise"))


def smooth(n: int, side: int) -> Tensor:
    """Photograph-like images: coarse noise, enlarged."""
    coarse = torch.rand((n, 3, 6, 6), generator=generator(6, "coarse"))
    fine = F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8)


def parameters(n: int, **values: float) -> Parameters:
    rows = {name: torch.full((n,), float(value)) for name, value in values.items()}
    return Parameters.identity(n)._replace(**rows)


def transformed(images: Tensor, **values: float) -> Tensor:
    """Apply the identity with these parameters changed, the same for all images."""
    return Views().apply(images, parameters(len(images), **values))


def unit(images: Tensor) -> Tensor:
    return images.float() / 255


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (3, 3, 32, 32), (2, 3, 20, 33), (1, 1, 1, 1)])
def test_identity_parameters_leave_the_images_unchanged(shape: tuple[int, ...]) -> None:
    images = noise(*shape)
    torch.testing.assert_close(transformed(images), unit(images), rtol=0, atol=1e-5)
    torch.testing.assert_close(Views()(images, generator(0)), unit(images), rtol=0, atol=1e-5)


def test_flip_mirrors_left_and_right() -> None:
    images = noise(4, 3, 17, 24)
    torch.testing.assert_close(transformed(images, flip=-1), unit(images).flip(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_equal_rot90(quarters: int) -> None:
    images = noise(2, 3, 16, 16)
    turned = torch.rot90(unit(images), quarters, dims=(2, 3))
    torch.testing.assert_close(transformed(images, angle=quarters * torch.pi / 2), turned, rtol=0, atol=1e-4)


def test_half_turn_of_an_oblong_image_keeps_its_shape() -> None:
    images = noise(2, 1, 12, 20)
    torch.testing.assert_close(
        transformed(images, angle=torch.pi), unit(images).flip(2, 3), rtol=0, atol=1e-4
    )


def test_rotation_keeps_distances_in_an_oblong_image() -> None:
    images = torch.zeros((1, 1, 41, 81), dtype=torch.uint8)
    images[0, 0, 20, 55] = 255  # 15 columns right of the centre
    places = transformed(images, angle=torch.pi / 2)[0, 0].nonzero().float()
    distances = (places - torch.tensor([20.0, 40.0])).norm(dim=1)
    torch.testing.assert_close(distances, torch.full_like(distances, 15.0), rtol=0, atol=0.01)


def test_shift_moves_by_half_widths_and_fills_with_zeros() -> None:
    images = noise(2, 1, 8, 8, low=1)
    moved = Views(padding="zeros").apply(images, parameters(2, x=0.5, y=-0.25))
    expected = torch.zeros(2, 1, 8, 8)
    expected[:, :, 1:, :6] = unit(images)[:, :, :7, 2:]
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


def test_shear_moves_columns_in_proportion_to_rows() -> None:
    images = noise(1, 1, 9, 9)
    sheared = Views(padding="zeros").apply(images, parameters(1, shear=1))[0, 0]
    for row in range(9):
        expected = torch.zeros(9)
        for column in range(9):
            source = column + row - 4
            expected[column] = unit(images)[0, 0, row, source] if 0 <= source < 9 else 0
        torch.testing.assert_close(sheared[row], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [12, 24, 31])
def test_crop_equals_cutting_and_resizing(size: int) -> None:
    images = noise(3, 3, 32, 32)
    cut = unit(images)[:, :, 4:20, 8:24]  # centre (12, 16) of 32, half the width
    expected = F.interpolate(cut, (size, size), mode="bilinear", align_corners=False)
    views = Views(size=size).apply(images, parameters(3, width=0.5, height=0.5, x=0, y=-0.25))
    inner = (..., slice(2, -2), slice(2, -2))  # at the border, a crop uses pixels outside it, a cut does not
    torch.testing.assert_close(views[inner], expected[inner], rtol=0, atol=1e-5)


def test_crop_equals_pillow_on_an_oblong_image() -> None:
    images = smooth(1, 40)[:, :, :30]
    box = (10.0, 6.0, 30.0, 21.0)  # half the width, half the height
    picture = Image.fromarray(images[0].permute(1, 2, 0).numpy())
    expected = np.asarray(picture.resize((24, 24), Image.Resampling.BILINEAR, box=box)) / 255
    view = Views(size=24).apply(images, parameters(1, width=0.5, height=0.5, x=0, y=-0.1))[0]
    assert np.abs(view.permute(1, 2, 0).numpy() - expected).max() < 0.02


@pytest.mark.parametrize("size", [16, 24, 40, 56])
def test_shrinking_does_not_alias(size: int) -> None:
    images = noise(2, 3, 96, 96)
    exact = F.interpolate(unit(images), (size, size), mode="bilinear", antialias=True)
    naive = F.interpolate(unit(images), (size, size), mode="bilinear")
    shrunk = Views(size=size).apply(images, parameters(2))
    assert (shrunk - exact).abs().mean() < 0.6 * (naive - exact).abs().mean()


def test_samples_that_shrink_by_different_factors_share_a_batch() -> None:
    images, widths = smooth(3, 64), (0.2, 0.5, 1.0)
    sides = torch.tensor(widths)
    together = Views(size=16).apply(images, parameters(3)._replace(width=sides, height=sides))
    for row, width in enumerate(widths):
        alone = Views(size=16).apply(images[row : row + 1], parameters(1, width=width, height=width))
        torch.testing.assert_close(together[row], alone[0])


def test_brightness_multiplies() -> None:
    images = noise(2, 3, 8, 8)
    torch.testing.assert_close(transformed(images, brightness=0.6), unit(images) * 0.6, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        transformed(images, brightness=1.4), (unit(images) * 1.4).clamp(0, 1), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_blends_with_the_mean_grey(channels: int) -> None:
    images = noise(2, channels, 8, 8)
    views = transformed(images, contrast=0.3, brightness=0.8)
    for view, image in zip(views, unit(images) * 0.8, strict=True):
        weights = LUMA if channels == 3 else (1.0,)
        grey = sum(weight * channel.mean() for weight, channel in zip(weights, image, strict=True))
        torch.testing.assert_close(view, 0.3 * image + 0.7 * grey, rtol=0, atol=1e-5)


@pytest.mark.parametrize("saturation", [0.0, 0.4, 1.0])
def test_saturation_blends_each_pixel_with_its_grey(saturation: float) -> None:
    images = noise(1, 3, 5, 4)
    view = transformed(images, saturation=saturation)[0]
    for row, column in np.ndindex(5, 4):
        colour = unit(images)[0, :, row, column]
        grey = sum(weight * float(value) for weight, value in zip(LUMA, colour, strict=True))
        expected = saturation * colour + (1 - saturation) * grey
        torch.testing.assert_close(view[:, row, column], expected, rtol=0, atol=1e-5)


def test_two_half_turns_of_the_hue_are_none() -> None:
    images = noise(4, 3, 8, 8, low=110, high=146)  # no colour leaves [0, 1] on the way
    once = transformed(images, hue=0.5)
    assert (once - unit(images)).abs().max() > 0.05
    twice = transformed((once * 255).round().to(torch.uint8), hue=0.5)
    torch.testing.assert_close(twice, unit(images), rtol=0, atol=2 / 255)


@pytest.mark.parametrize("hue", [-0.1, 0.25, 0.5])
def test_hue_leaves_every_grey_unchanged(hue: float) -> None:
    grey = noise(2, 1, 8, 8).expand(-1, 3, -1, -1)
    torch.testing.assert_close(transformed(grey, hue=hue), unit(grey), rtol=0, atol=1e-5)


def test_hue_keeps_the_luma_and_turns_red_towards_the_other_colours() -> None:
    red = torch.tensor([160, 110, 110], dtype=torch.uint8).view(1, 3, 1, 1)
    luma = torch.tensor(LUMA)
    turned = [transformed(red, hue=third / 3).flatten() for third in range(3)]
    assert sorted(int(colour.argmax()) for colour in turned) == [0, 1, 2]
    for colour in turned:
        torch.testing.assert_close(luma @ colour, luma @ unit(red).flatten(), rtol=0, atol=1e-5)


def test_one_channel_has_no_saturation_and_no_hue() -> None:
    images = noise(3, 1, 8, 8)
    assert torch.equal(transformed(images, saturation=0, hue=0.3), transformed(images))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.0])
def test_blur_equals_a_gaussian_filter_away_from_the_border(sigma: float) -> None:
    images = noise(2, 3, 40, 30)
    blurred = transformed(images, sigma=sigma)
    expected = gaussian_filter(unit(images).numpy(), sigma, axes=(2, 3), truncate=8)
    inner = (..., slice(10, -10), slice(10, -10))
    np.testing.assert_allclose(blurred[inner].numpy(), expected[inner], atol=1e-5)


def test_blur_at_the_border_uses_only_pixels_inside() -> None:
    images = noise(1, 1, 16, 16)
    inside = gaussian_filter(np.ones((16, 16)), 1.5, mode="constant", truncate=20)
    expected = gaussian_filter(unit(images)[0, 0].numpy(), 1.5, mode="constant", truncate=20) / inside
    np.testing.assert_allclose(transformed(images, sigma=1.5)[0, 0].numpy(), expected, atol=1e-5)


def test_blur_leaves_samples_with_sigma_0_unchanged() -> None:
    images = noise(4, 3, 16, 16)
    sigma = torch.tensor([0.0, 1.0, 0.0, 2.0])
    views = Views().apply(images, parameters(4)._replace(sigma=sigma))
    assert torch.equal(views[0::2], transformed(images)[0::2])
    for row in (1, 3):
        alone = transformed(images[row : row + 1], sigma=float(sigma[row]))
        torch.testing.assert_close(views[row], alone[0])
