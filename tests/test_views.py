"""The augmentation family against slow computations, one sample and one property at a time."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Generator, Tensor

from fedmcc.errors import InputError
from fedmcc.randomness import generator
from fedmcc.views import PRESETS, Parameters, Views, contact_sheet, preset

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


def seen(images: Tensor, **values: float) -> Tensor:
    """The images under the identity with these parameters changed, the same for all."""
    return Views().apply(images, parameters(len(images), **values))


def unit(images: Tensor) -> Tensor:
    return images.float() / 255


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (3, 3, 32, 32), (2, 3, 20, 33), (1, 1, 1, 1)])
def test_identity_parameters_give_the_images_back(shape: tuple[int, ...]) -> None:
    images = noise(*shape)
    torch.testing.assert_close(seen(images), unit(images), rtol=0, atol=1e-5)
    torch.testing.assert_close(Views()(images, generator(0)), unit(images), rtol=0, atol=1e-5)


def test_flip_mirrors_left_and_right() -> None:
    images = noise(4, 3, 17, 24)
    torch.testing.assert_close(seen(images, flip=-1), unit(images).flip(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_equal_rot90(quarters: int) -> None:
    images = noise(2, 3, 16, 16)
    turned = torch.rot90(unit(images), quarters, dims=(2, 3))
    torch.testing.assert_close(seen(images, angle=quarters * torch.pi / 2), turned, rtol=0, atol=1e-4)


def test_half_turn_of_an_oblong_image_keeps_its_shape() -> None:
    images = noise(2, 1, 12, 20)
    torch.testing.assert_close(seen(images, angle=torch.pi), unit(images).flip(2, 3), rtol=0, atol=1e-4)


def test_rotation_keeps_distances_in_an_oblong_image() -> None:
    images = torch.zeros((1, 1, 41, 81), dtype=torch.uint8)
    images[0, 0, 20, 55] = 255  # 15 columns right of the centre
    places = seen(images, angle=torch.pi / 2)[0, 0].nonzero().float()
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
    inner = (..., slice(2, -2), slice(2, -2))  # at its border a crop sees its neighbours, a cut does not
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
    torch.testing.assert_close(seen(images, brightness=0.6), unit(images) * 0.6, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        seen(images, brightness=1.4), (unit(images) * 1.4).clamp(0, 1), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_blends_with_the_mean_grey(channels: int) -> None:
    images = noise(2, channels, 8, 8)
    views = seen(images, contrast=0.3, brightness=0.8)
    for view, image in zip(views, unit(images) * 0.8, strict=True):
        weights = LUMA if channels == 3 else (1.0,)
        grey = sum(weight * channel.mean() for weight, channel in zip(weights, image, strict=True))
        torch.testing.assert_close(view, 0.3 * image + 0.7 * grey, rtol=0, atol=1e-5)


@pytest.mark.parametrize("saturation", [0.0, 0.4, 1.0])
def test_saturation_blends_each_pixel_with_its_grey(saturation: float) -> None:
    images = noise(1, 3, 5, 4)
    view = seen(images, saturation=saturation)[0]
    for row, column in np.ndindex(5, 4):
        colour = unit(images)[0, :, row, column]
        grey = sum(weight * float(value) for weight, value in zip(LUMA, colour, strict=True))
        expected = saturation * colour + (1 - saturation) * grey
        torch.testing.assert_close(view[:, row, column], expected, rtol=0, atol=1e-5)


def test_two_half_turns_of_the_hue_are_none() -> None:
    images = noise(4, 3, 8, 8, low=110, high=146)  # no colour leaves [0, 1] on the way
    once = seen(images, hue=0.5)
    assert (once - unit(images)).abs().max() > 0.05
    twice = seen((once * 255).round().to(torch.uint8), hue=0.5)
    torch.testing.assert_close(twice, unit(images), rtol=0, atol=2 / 255)


@pytest.mark.parametrize("hue", [-0.1, 0.25, 0.5])
def test_hue_leaves_every_grey_as_it_is(hue: float) -> None:
    grey = noise(2, 1, 8, 8).expand(-1, 3, -1, -1)
    torch.testing.assert_close(seen(grey, hue=hue), unit(grey), rtol=0, atol=1e-5)


def test_hue_keeps_the_luma_and_turns_red_towards_the_other_colours() -> None:
    red = torch.tensor([160, 110, 110], dtype=torch.uint8).view(1, 3, 1, 1)
    luma = torch.tensor(LUMA)
    turned = [seen(red, hue=third / 3).flatten() for third in range(3)]
    assert sorted(int(colour.argmax()) for colour in turned) == [0, 1, 2]
    for colour in turned:
        torch.testing.assert_close(luma @ colour, luma @ unit(red).flatten(), rtol=0, atol=1e-5)


def test_one_channel_has_no_saturation_and_no_hue() -> None:
    images = noise(3, 1, 8, 8)
    assert torch.equal(seen(images, saturation=0, hue=0.3), seen(images))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.0])
def test_blur_equals_a_gaussian_filter_away_from_the_border(sigma: float) -> None:
    images = noise(2, 3, 40, 30)
    blurred = seen(images, sigma=sigma)
    expected = gaussian_filter(unit(images).numpy(), sigma, axes=(2, 3), truncate=8)
    inner = (..., slice(10, -10), slice(10, -10))
    np.testing.assert_allclose(blurred[inner].numpy(), expected[inner], atol=1e-5)


def test_blur_at_the_border_weighs_only_what_is_inside() -> None:
    images = noise(1, 1, 16, 16)
    inside = gaussian_filter(np.ones((16, 16)), 1.5, mode="constant", truncate=20)
    expected = gaussian_filter(unit(images)[0, 0].numpy(), 1.5, mode="constant", truncate=20) / inside
    np.testing.assert_allclose(seen(images, sigma=1.5)[0, 0].numpy(), expected, atol=1e-5)


def test_blur_leaves_samples_alone_that_did_not_draw_it() -> None:
    images = noise(4, 3, 16, 16)
    sigma = torch.tensor([0.0, 1.0, 0.0, 2.0])
    views = Views().apply(images, parameters(4)._replace(sigma=sigma))
    assert torch.equal(views[0::2], seen(images)[0::2])
    for row in (1, 3):
        alone = seen(images[row : row + 1], sigma=float(sigma[row]))
        torch.testing.assert_close(views[row], alone[0])


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_finite_numbers_from_0_to_1(name: str, channels: int) -> None:
    extremes = torch.cat(
        [noise(30, channels, 20, 14), torch.full((2, channels, 20, 14), 255, dtype=torch.uint8)]
    )
    views = preset(name, size=18, blur=0.5)(extremes, generator(1))
    assert views.dtype == torch.float32
    assert views.shape == (32, channels, 18, 18)
    assert views.isfinite().all()
    assert 0 <= views.min() <= views.max() <= 1


def test_the_same_generator_state_gives_the_same_bits() -> None:
    images, views = noise(40, 3, 32, 32), preset("photo", blur=0.5)
    first, second = views(images, generator(3)), views(images, generator(3))
    assert torch.equal(first, second)
    assert not torch.equal(first, views(images, generator(4)))


def test_the_layout_in_memory_does_not_matter() -> None:
    images, views = noise(20, 3, 16, 16), preset("photo", size=12, blur=0.5)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        views(channels_last, generator(3)), views(images, generator(3)), rtol=0, atol=1e-6
    )


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    before = torch.get_rng_state()
    PRESETS["photo"](noise(8, 3, 16, 16), generator(0))
    assert torch.equal(before, torch.get_rng_state())


def test_every_sample_draws_its_own_numbers() -> None:
    views = preset("photo", crop=(0.1, 0.5), rotation=9.0, shear=0.1, jitter=1.0, greyscale=0.0, blur=1.0)
    for name, values in views.draw(50, generator(2))._asdict().items():
        assert len(values.unique()) == (2 if name == "flip" else 50), name


@pytest.mark.parametrize(("name", "side"), [("photo", 32), ("photo", 96), ("medical", 64), ("digits", 28)])
def test_slices_applied_separately_equal_the_whole(name: str, side: int) -> None:
    images, views = noise(70, 3, side, side), preset(name, size=24, blur=0.5)
    drawn = views.draw(70, generator(7))
    parts = [slice(0, 1), slice(1, 18), slice(18, 70)]
    together = torch.cat([views.apply(images[rows], drawn.take(rows)) for rows in parts])
    torch.testing.assert_close(together, views.apply(images, drawn), rtol=0, atol=1e-6)


def test_a_changed_number_leaves_the_other_draws_as_they_were() -> None:
    usual = PRESETS["photo"].draw(30, generator(8))
    changed = preset("photo", rotation=30.0, blur=1.0, flip=0.0).draw(30, generator(8))
    for name in set(Parameters._fields) - {"angle", "sigma", "flip"}:
        assert torch.equal(getattr(usual, name), getattr(changed, name)), name


@settings(max_examples=40, deadline=None)
@given(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)))
def test_crops_lie_inside_the_image_and_have_the_area_asked_for(
    crop: tuple[float, float], ratio: tuple[float, float]
) -> None:
    low, high = sorted(crop)
    drawn = Views(crop=(low, high), ratio=(min(ratio), max(ratio))).draw(200, generator(9))
    area = drawn.width * drawn.height
    assert low - 1e-5 <= area.min() <= area.max() <= high + 1e-5
    assert (drawn.x.abs() + drawn.width).max() <= 1 + 1e-5
    assert (drawn.y.abs() + drawn.height).max() <= 1 + 1e-5


def test_numbers_are_drawn_as_often_and_as_far_as_asked() -> None:
    views = replace(PRESETS["photo"], rotation=90.0, blur=0.3, sigma=(1.0, 2.0))
    drawn = views.draw(20_000, generator(10))
    assert (drawn.flip < 0).float().mean() == pytest.approx(0.5, abs=0.015)
    assert (drawn.saturation == 0).float().mean() == pytest.approx(0.2, abs=0.015)
    assert (drawn.brightness == 1).float().mean() == pytest.approx(0.2, abs=0.015)
    assert (drawn.sigma > 0).float().mean() == pytest.approx(0.3, abs=0.015)
    assert (drawn.width * drawn.height).mean() == pytest.approx(0.54, abs=0.01)  # uniform between .08 and 1
    assert drawn.angle.std() == pytest.approx(torch.pi / 2 / 3**0.5, abs=0.02)
    assert drawn.sigma[drawn.sigma > 0].aminmax() == pytest.approx((1, 2), abs=0.01)
    assert drawn.contrast.aminmax() == pytest.approx((0.6, 1.4), abs=0.01)


def test_a_crop_above_1_zooms_out() -> None:
    images = torch.full((20, 1, 16, 16), 255, dtype=torch.uint8)
    views = Views(crop=(4.0, 4.0), padding="zeros", wander=0.0)(images, generator(0))
    assert torch.equal(views[:, :, 5:11, 5:11], torch.ones(20, 1, 6, 6))
    assert views.mean() == pytest.approx(0.25, abs=0.01)


def test_plain_only_resizes_and_scales() -> None:
    images = noise(2, 3, 20, 30)
    assert torch.equal(PRESETS["photo"].plain(images), unit(images))
    whole = PRESETS["photo"].plain(smooth(2, 64).repeat(1, 1, 1, 2))
    shrunk = preset("photo", size=16).plain(smooth(2, 64).repeat(1, 1, 1, 2))
    blocks = F.avg_pool2d(whole, (4, 8))
    assert shrunk.shape == (2, 3, 16, 16)
    assert (shrunk - blocks)[..., 2:-2, 2:-2].abs().mean() < 0.03


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flip": 1.5}, "views.flip is 1.5: give a number between 0 and 1."),
        ({"blur": float("nan")}, "views.blur is nan: give a number between 0 and 1."),
        ({"contrast": -1.0}, "views.contrast is -1: give a number between 0 and 10."),
        ({"crop": (0.9, 0.1)}, "views.crop is [0.9, 0.1]: give two positive numbers, the lower first."),
        ({"ratio": (0.0, 1.0)}, "views.ratio is [0, 1]: give two positive numbers, the lower first."),
        ({"size": 0}, "views.size is 0: give a number of pixels of 1 or more."),
        ({"padding": "wrap"}, "views.padding is 'wrap': give one of zeros, border, reflection."),
        ({"rotatoin": 5.0}, "Unknown option of views 'rotatoin'. Did you mean 'rotation'?"),
    ],
)
def test_wrong_numbers_are_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        preset("photo", **changes)
    assert str(refusal.value) == sentence


def test_an_unknown_preset_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"Unknown preset of views 'fotos'\. Did you mean 'photo'\?"):
        preset("fotos")


@pytest.mark.parametrize("option", [field.name for field in fields(Views)])
def test_every_number_of_a_preset_can_be_replaced(option: str) -> None:
    usual = getattr(PRESETS["photo"], option)
    others = {"size": 8, "padding": "zeros", "crop": (0.3, 0.4), "ratio": (0.3, 0.4), "sigma": (0.3, 0.4)}
    other = others.get(option, 0.3)
    changed = preset("photo", **{option: other})
    assert getattr(changed, option) == other != usual
    assert replace(changed, **{option: usual}) == PRESETS["photo"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_contact_sheet_shows_the_image_at_the_left_of_its_views(channels: int) -> None:
    images = noise(3, channels, 16, 16)
    sheet = np.asarray(contact_sheet(images, PRESETS["photo"], generator(0), columns=5))
    assert sheet.shape == (3 * (64 + 4), 5 * (64 + 4), 3)
    first = sheet[2:66, 2:66][::4, ::4].transpose(2, 0, 1)
    assert np.array_equal(first, images[0].expand(3, -1, -1).numpy())


@pytest.mark.parametrize("call", [lambda v, i, g: v(i, g), lambda v, i, g: v.plain(i)])
def test_no_images_give_no_views(call: Callable[[Views, Tensor, Generator], Tensor]) -> None:
    assert call(preset("photo", size=8), noise(0, 3, 16, 16), generator(0)).shape == (0, 3, 8, 8)
