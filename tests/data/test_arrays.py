import numpy as np
import pytest

from fedmcc.data.arrays import Arrays
from fedmcc.errors import InputError


@pytest.fixture
def images(generator):
    return generator.integers(256, size=(5, 3, 4, 6), dtype=np.uint8)


@pytest.mark.parametrize("layout", ["first", "last", "float", "int64"])
def test_every_layout_and_type_gives_the_same_bytes(tmp_path, images, layout):
    given = {
        "first": images,
        "last": images.transpose(0, 2, 3, 1),
        "float": (images / 255).astype(np.float32),
        "int64": images.astype(np.int64),
    }[layout]
    np.savez(tmp_path / "set.npz", images=given)
    np.testing.assert_array_equal(Arrays(root=tmp_path / "set.npz").load().images, images)


def test_grey_images_need_no_channel_axis_and_stay_on_disk(tmp_path, images):
    np.save(tmp_path / "set.npy", images[:, 0])
    loaded = Arrays(root=tmp_path / "set.npy").load()
    assert isinstance(loaded.images, np.memmap)
    np.testing.assert_array_equal(loaded.images, images[:, :1])
    assert loaded.labels is None


def test_masks_become_black_and_white(tmp_path, images):
    np.save(tmp_path / "set.npy", images[:, 0] > 127)
    assert set(np.unique(Arrays(root=tmp_path / "set.npy").load().images)) == {0, 255}


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        ([7, 3, -1, 3, 7], [1, 0, -1, 0, 1], ("3", "7")),
        ([[0], [1], [2], [1], [0]], [0, 1, 2, 1, 0], ("0", "1", "2")),
        (["dog", "cat", "dog", "cat", "cat"], [1, 0, 1, 0, 0], ("cat", "dog")),
    ],
)
def test_labels_are_numbered_in_the_order_of_their_names(tmp_path, images, labels, expected, classes):
    np.savez(tmp_path / "set.npz", pixels=images, answers=np.array(labels))
    loaded = Arrays(root=tmp_path / "set.npz", images="pixels", labels="answers").load()
    assert loaded.labels.tolist() == expected
    assert loaded.classes == classes


def _with_nan(count, *rows):
    images = np.zeros((count, 4, 4))
    images[list(rows), 1, 2] = np.nan
    return images


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"pictures": np.zeros((2, 4, 4), np.uint8)}, "no array 'images'"),
        ({"images": np.zeros((2, 4, 4, 2), np.uint8)}, r"shape \(2, 4, 4, 2\)"),
        ({"images": np.zeros((0, 4, 4), np.uint8)}, r"shape \(0, 4, 4\)"),
        ({"images": np.zeros((2, 16), np.uint8)}, r"shape \(2, 16\)"),
        ({"images": np.full((2, 4, 4), 255.0)}, r"values outside 0\.\.1"),
        ({"images": _with_nan(5, 3)}, r"Image 3 in .*set\.npz has values that are NaN or infinite"),
        ({"images": _with_nan(9, 2, 5, 8)}, "Image 2 in .* and 2 more images have values that are NaN"),
        ({"images": np.full((2, 4, 4), 256)}, r"values outside 0\.\.255"),
        ({"images": np.zeros((2, 4, 4), np.complex64)}, "type complex64"),
        ({"images": np.full((2, 4, 4), None)}, "Python objects"),
        ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(3, int)}, r"labels .*shape \(3,\)"),
        ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(2)}, "labels .*type float64"),
    ],
)
def test_unfit_arrays_give_one_sentence(tmp_path, arrays, sentence):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(InputError, match=sentence):
        Arrays(root=tmp_path / "set.npz").load()


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("cut", [0, 5, 150])
def test_truncated_file_is_named(tmp_path, images, suffix, cut):
    path = tmp_path / f"set{suffix}"
    np.save(path, images) if suffix == ".npy" else np.savez(path, images=images)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=rf"set\{suffix} cannot be read"):
        Arrays(root=path).load()


@pytest.mark.parametrize("name", [None, "absent.npz", "notes.txt"])
def test_wrong_path_gives_one_sentence(tmp_path, name):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"\.npz or \.npy file"):
        Arrays(root=None if name is None else tmp_path / name).load()
