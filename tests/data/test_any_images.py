"""Images as Python programs hold them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from fedmcc.data.any_images import gathered, to_images
from fedmcc.errors import InputError


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)


class Column:
    """A column of a Hugging Face data set: a length, and items that are decoded when they are asked for."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


class Rows(Dataset):
    """A data set of PyTorch whose items are dictionaries."""

    def __init__(self, key, items):
        self.key, self.items = key, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return {self.key: self.items[row], "label": row}


def _pictures(images):
    return [Image.fromarray(image.transpose(1, 2, 0)) for image in images]


def test_data_sets_and_columns_hold_the_same_images_as_arrays(images):
    tensors = torch.from_numpy(images)
    kinds = [
        tensors,
        list(tensors),
        TensorDataset(tensors, torch.zeros(5)),
        Rows("image", _pictures(images)),
        Rows("img", list(images)),
        Column(_pictures(images)),
        [image.transpose(1, 2, 0) for image in images],
    ]
    for given in kinds:
        np.testing.assert_array_equal(to_images(gathered(given), (8, 8), 3), images)


def test_a_column_of_paths_is_read_from_the_files(images, tmp_path):
    paths = [tmp_path / f"{row}.png" for row in range(5)]
    for path, picture in zip(paths, _pictures(images), strict=True):
        picture.save(path)
    for given in (np.array(list(map(str, paths)), dtype=object), Column(list(map(str, paths)))):
        np.testing.assert_array_equal(to_images(gathered(given), (8, 8), 3), images)


def test_an_array_of_another_shape_is_named(images):
    given = [*images[:3], images[3, :, :5]]
    for kind in (given, [torch.from_numpy(image) for image in given], Rows("image", given)):
        with pytest.raises(
            InputError, match=r"Image 3 of X has the shape \(3, 5, 8\) and image 0 \(3, 8, 8\)"
        ):
            gathered(kind)
    with pytest.raises(InputError, match="The lists of X have different lengths"):
        to_images(gathered([[[1, 2], [3, 4]], [[5, 6]]]), (8, 8), None)


def test_what_has_no_images_is_named(images):
    with pytest.raises(InputError, match=r"no key 'image': give the column of images \(photo, label\)"):
        gathered(Rows("photo", list(images)))
    with pytest.raises(InputError, match="X is a generator: give an array"):
        gathered(image for image in images)
