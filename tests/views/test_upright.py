"""Large views that are not rotated, against the general resampling of the same parameters."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedmcc.numerics.randomness import generator
from fedmcc.views import Parameters, Views, preset
from fedmcc.views.upright import is_suitable

CPU = torch.device("cpu")


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(5, "noise"))


def resampled(views: Views, images: Tensor, parameters: Parameters) -> Tensor:
    """The same views by `grid_sample`, the way of all small views."""
    out = torch.empty(len(images), images.shape[1], *views._shape(images))
    views._resample(images, parameters, out)
    return out


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 224, 224), None),
        ((3, 260, 400), 224),
        ((1, 224, 200), 208),
        ((3, 500, 640), 192),
        ((3, 90, 90), 256),
    ],
)
def test_large_views_equal_general_resampling(shape: tuple[int, int, int], size: int | None) -> None:
    views, images = preset("photo", size=size, blur=0.3), noise(12, *shape)
    parameters = views.draw(12, generator(1))
    assert is_suitable(views.padding, views._shape(images), CPU)
    expected = resampled(views, images, parameters)
    torch.testing.assert_close(views.apply(images, parameters), expected, rtol=0, atol=1e-5)


def test_crops_beyond_the_border_repeat_its_pixels() -> None:
    views, images = Views(crop=(1.5, 2.0), ratio=(0.8, 1.25), shift=0.6, flip=0.5), noise(6, 3, 224, 224)
    parameters = views.draw(6, generator(2))
    expected = resampled(views, images, parameters)
    torch.testing.assert_close(views.apply(images, parameters), expected, rtol=0, atol=1e-5)


def test_the_identity_returns_the_image() -> None:
    images = noise(2, 3, 224, 224)
    views = Views().apply(images, Parameters.identity(2))
    # A position near column 200 is rounded by up to 8e-6 pixels, in both ways of resampling.
    torch.testing.assert_close(views, images.float() / 255, rtol=0, atol=2e-5)


def test_a_large_view_depends_on_its_own_row_only() -> None:
    views, images = preset("photo", contrast=1.0), noise(5, 3, 224, 224)
    parameters = views.draw(5, generator(3))
    turned = parameters._replace(angle=torch.tensor([0.0, 0.3, 0.0, 0.0, -0.2]))  # both ways in one batch
    together = views.apply(images, turned)
    alone = [views.apply(images[[row]], turned.take(slice(row, row + 1)))[0] for row in range(5)]
    assert torch.equal(together, torch.stack(alone))


def test_small_views_and_other_paddings_take_the_general_way() -> None:
    assert not is_suitable("border", (96, 96), CPU)
    assert not is_suitable("zeros", (224, 224), CPU)
    assert not is_suitable("border", (211, 211), CPU)
    images, views = noise(3, 3, 224, 224), preset("photo", padding="zeros", rotation=0.0)
    parameters = views.draw(3, generator(4))
    assert torch.equal(views.apply(images, parameters), resampled(views, images, parameters))
    small = replace(views, padding="border", size=96)
    assert torch.equal(small.apply(images, parameters), resampled(small, images, parameters))
