from itertools import pairwise

import numpy as np
import pytest

from fedmcc.data.synthetic import SHAPES, Synthetic
from fedmcc.errors import InputError


def test_same_seed_same_images_and_another_seed_others():
    first, again, other = (Synthetic(samples=20, seed=seed).load() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.images != other.images).any()


@pytest.mark.parametrize("channels", [1, 3])
def test_options_set_the_shape_of_the_set(channels):
    images = Synthetic(samples=64, classes=8, size=16, channels=channels).load()
    assert images.images.shape == (64, channels, 16, 16)
    assert set(images.labels.tolist()) == set(range(8))
    assert images.classes == tuple(SHAPES)


def test_shapes_cover_different_areas():
    x, y = np.meshgrid(np.linspace(-1, 1, 101), np.linspace(-1, 1, 101))
    inside = [shape(x, y) < 0 for shape in SHAPES.values()]
    for first, second in pairwise(inside):
        assert (first & second).sum() / (first | second).sum() < 0.9
    assert all(0.1 < area.mean() < 0.6 for area in inside)


def test_nearest_mean_of_raw_pixels_does_not_separate_the_classes():
    images = Synthetic(samples=600, channels=1, seed=3).load()
    pixels = images.images.reshape(600, -1) / 255
    means = np.stack([pixels[:400][images.labels[:400] == label].mean(axis=0) for label in range(4)])
    distance = ((pixels[400:, None] - means) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == images.labels[400:]).mean() < 0.75


@pytest.mark.parametrize(
    "options", [{"samples": 0}, {"classes": 0}, {"classes": 9}, {"size": 4}, {"limit": -1}]
)
def test_option_out_of_bounds_is_named(options):
    with pytest.raises(InputError, match=rf"data\.{next(iter(options))} is "):
        Synthetic(**options).load()
