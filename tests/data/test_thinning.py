"""Thinned classes: sizes in geometric progression, in an order and of images that the seed draws."""

import numpy as np
import pytest

from fedmcc.data import load_dataset
from fedmcc.data.thinning import thinned_rows
from fedmcc.errors import InputError


def test_class_sizes_fall_geometrically_from_all_images_to_one_in_ratio():
    labels = np.arange(10).repeat(1000)
    sizes = np.bincount(labels[thinned_rows(labels, 10.0, seed=0)])
    expected = [1000, 774, 599, 464, 359, 278, 215, 167, 129, 100]  # 1000 · 10^(-i / 9)
    assert sorted(sizes, reverse=True) == expected


def test_the_seed_draws_the_order_of_the_classes_and_the_images():
    labels = np.arange(3).repeat(200)
    orders = {tuple(np.bincount(labels[thinned_rows(labels, 10.0, seed)])) for seed in range(20)}
    assert len(orders) == 6  # all orders of three classes
    np.testing.assert_array_equal(thinned_rows(labels, 10.0, 7), thinned_rows(labels, 10.0, 7))


def test_kept_images_are_spread_over_the_whole_class():
    labels = np.tile([0, 1], 1000)
    kept = thinned_rows(labels, 100.0, seed=0)
    rare = np.bincount(labels[kept]).argmin()
    assert kept[labels[kept] == rare].max() > 1000  # its first ten images are among the first 20 rows


def test_images_without_a_label_and_the_last_image_of_a_class_are_kept():
    labels = np.array([-1, 0, 1, -1, 2])
    assert thinned_rows(labels, 100.0, 0).tolist() == [0, 1, 2, 3, 4]


def test_a_data_set_is_thinned_before_it_is_limited():
    thinned = load_dataset("digits", thinned=10.0, thinning_seed=1)
    limited = load_dataset("digits", thinned=10.0, thinning_seed=1, limit=200)
    assert np.bincount(thinned.labels).max() > 9 * np.bincount(thinned.labels).min()
    np.testing.assert_array_equal(limited.images, thinned.images[:200])


@pytest.mark.parametrize("options", [{"thinned": 0.5}, {"thinned": float("nan")}])
def test_an_impossible_ratio_is_refused(options):
    with pytest.raises(InputError, match=r"data\.thinned is .*: give 1 or more"):
        load_dataset("digits", **options)


def test_images_without_labels_cannot_be_thinned(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((4, 2, 2), np.uint8))
    with pytest.raises(InputError, match=r"data\.thinned needs labels"):
        load_dataset("arrays", root=tmp_path / "images.npy", thinned=2.0)
