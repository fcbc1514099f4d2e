"""Draws of the augmentation family, properties of any batch, and presets."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from fedmcc.errors import InputError
from fedmcc.numerics.randomness import generator
from fedmcc.views import PRESETS, Parameters, Views, contact_sheet, preset


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(5, "noise"))


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


def test_the_global_generator_is_not_used() -> None:
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


def test_a_changed_option_does_not_change_the_other_draws() -> None:
    usual = PRESETS["photo"].draw(30, generator(8))
    changed = preset("photo", rotation=30.0, blur=1.0, flip=0.0).draw(30, generator(8))
    for name in set(Parameters._fields) - {"angle", "sigma", "flip"}:
        assert torch.equal(getattr(usual, name), getattr(changed, name)), name


@settings(max_examples=40)
@given(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)))
def test_crops_are_inside_the_image_and_have_an_area_in_the_range(
    crop: tuple[float, float], ratio: tuple[float, float]
) -> None:
    low, high = sorted(crop)
    drawn = Views(crop=(low, high), ratio=(min(ratio), max(ratio))).draw(200, generator(9))
    area = drawn.width * drawn.height
    assert low - 1e-5 <= area.min() <= area.max() <= high + 1e-5
    assert (drawn.x.abs() + drawn.width).max() <= 1 + 1e-5
    assert (drawn.y.abs() + drawn.height).max() <= 1 + 1e-5


def test_draws_have_the_given_probabilities_and_ranges() -> None:
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
    assert torch.equal(PRESETS["photo"].plain(images), images.float() / 255)
    blocks = noise(2, 3, 4, 4).repeat_interleave(16, dim=2).repeat_interleave(8, dim=3)  # 64 x 32
    shrunk = preset("photo", size=16).plain(blocks)
    middles = shrunk[:, :, 1::4, 1::4]  # away from the edges of the blocks, where neighbours blend
    torch.testing.assert_close(middles, blocks[:, :, 6::16, 3::8].float() / 255, rtol=0, atol=1e-3)


def test_plain_does_not_alias() -> None:
    stripes = torch.tensor([255, 0, 0, 0], dtype=torch.uint8).repeat(16).expand(1, 1, 64, 64)
    shrunk = preset("photo", size=16).plain(stripes)[..., 2:-2]
    torch.testing.assert_close(shrunk, torch.full_like(shrunk, 0.25), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flip": 1.5}, "views.flip is 1.5: give a number between 0 and 1."),
        ({"blur": float("nan")}, "views.blur is nan: give a number between 0 and 1."),
        ({"contrast": -1.0}, "views.contrast is -1: give a number between 0 and 10."),
        ({"crop": (0.9, 0.1)}, "views.crop is [0.9, 0.1]: give two positive numbers, the lower first."),
        ({"ratio": (0.0, 1.0)}, "views.ratio is [0, 1]: give two positive numbers, the lower first."),
        ({"size": 0}, "views.size is 0: give 1 pixel or more."),
        ({"padding": "wrap"}, "views.padding is 'wrap': give one of zeros, border, reflection."),
        ({"rotatoin": 5.0}, "Unknown option of views 'rotatoin'. Did you mean 'rotation'?"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        preset("photo", **changes)
    assert str(refusal.value) == sentence


def test_an_unknown_preset_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"Unknown preset of views 'fotos'\. Did you mean 'photo'\?"):
        preset("fotos")


@pytest.mark.parametrize("option", [field.name for field in fields(Views)])
def test_every_option_of_a_preset_can_be_replaced(option: str) -> None:
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


@pytest.mark.parametrize(
    "call", [lambda views, images, draw: views(images, draw), lambda views, images, _: views.plain(images)]
)
def test_no_images_give_no_views(call: Callable[[Views, Tensor, Generator], Tensor]) -> None:
    assert call(preset("photo", size=8), noise(0, 3, 16, 16), generator(0)).shape == (0, 3, 8, 8)
