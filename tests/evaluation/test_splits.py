import numpy as np
import pytest

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.splits import EncodedImages, hold_out_fifth, labelled, stratified
from fedmcc.numerics.randomness import generator


def _encoded(labels):
    n = len(labels)
    images = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
    return EncodedImages(
        ImageSet(images, np.asarray(labels, dtype=np.int64), split="all"),
        Extracted(np.arange(n, dtype=np.float32)[:, None], None),
    )


@pytest.mark.parametrize(("share", "counts"), [(0.01, [1, 1, 5]), (0.1, [1, 10, 50]), (0.2, [2, 20, 100])])
def test_every_class_gives_its_share_and_one_image_at_least(share, counts):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 3, 7], [10, 100, 500]))
    rows = stratified(labels, share, generator(0))
    assert np.bincount(labels[rows])[[0, 3, 7]].tolist() == counts
    assert (np.diff(rows) > 0).all()


def test_the_generator_decides_which_rows_are_drawn():
    labels = np.arange(1000) % 10
    first, again, other = (stratified(labels, 0.01, generator(seed)).tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_every_row_is_as_likely_as_the_others():
    labels = np.arange(20) % 2
    drawn = np.concatenate([stratified(labels, 0.2, generator(seed)) for seed in range(500)])
    assert np.bincount(drawn, minlength=20) == pytest.approx(np.full(20, 100), abs=5 * np.sqrt(80))


def test_a_fifth_of_every_class_is_held_out_and_the_rest_is_the_train_set():
    encoded = _encoded(np.random.default_rng(1).permutation(np.repeat([-1, 0, 1], [7, 50, 100])))
    train_set, test_set = hold_out_fifth(encoded)
    assert np.bincount(test_set.labels).tolist() == [10, 20]
    assert sorted([*train_set.rows, *test_set.rows]) == np.flatnonzero(encoded.images.labels >= 0).tolist()
    assert test_set.split == "held-out fifth"
    assert np.array_equal(hold_out_fifth(encoded)[1].rows, test_set.rows)


def test_features_images_and_labels_are_those_of_the_rows():
    encoded = _encoded([-1, 4, 5, -1, 6])
    known = labelled(encoded, "all")
    assert known.features.inputs.ravel().tolist() == [1, 2, 4]
    assert known.images().inputs.ravel().tolist() == [1, 2, 4]
    assert known.images(np.array([0, 2])).labels.tolist() == [4, 6]


def test_too_few_labels_to_hold_out_are_refused():
    with pytest.raises(InputError, match="give more images"):
        hold_out_fifth(_encoded([0, 0, 1, 1]))
    with pytest.raises(InputError, match="No image of the split 'all' has a label"):
        hold_out_fifth(_encoded([-1, -1]))
