import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedmcc.data import load_dataset
from fedmcc.data.mnist import MNIST
from fedmcc.errors import InputError


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def files(tmp_path, generator):
    """Five training images, compressed, and three test images, uncompressed."""
    arrays = {}
    for prefix, suffix, count in (("train", ".gz", 5), ("t10k", "", 3)):
        arrays[prefix] = generator.integers(256, size=(count, 4, 6), dtype=np.uint8)
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte{suffix}", arrays[prefix])
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(count, dtype=np.uint8))
    return arrays


def test_compressed_and_uncompressed_files_are_read_alike(files, tmp_path):
    both = MNIST(root=tmp_path, split="train+test").load()
    assert both.images.shape == (8, 1, 4, 6)
    np.testing.assert_array_equal(both.images[:5, 0], files["train"])
    np.testing.assert_array_equal(both.images[5:, 0], files["t10k"])
    assert both.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert both.split == "train+test"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("fashion-mnist", "fashion-mnist"), ("fashion-mnist", "FashionMNIST/raw"), ("kmnist", "KMNIST/raw")],
)
def test_files_are_found_in_the_folder_of_the_data_set_below_root(files, tmp_path, name, folder):
    (tmp_path / "data" / folder).mkdir(parents=True)
    for path in list(tmp_path.glob("*ubyte*")):
        path.rename(tmp_path / "data" / folder / path.name)
    assert len(load_dataset(name, root=tmp_path / "data", split="test")) == 3


def test_the_test_images_can_be_used_without_the_training_images(files, tmp_path):
    for path in tmp_path.glob("train-*"):
        path.unlink()
    images = load_dataset("kmnist", root=tmp_path, split="test")
    assert [images.classes[label] for label in images.labels] == ["o", "ki", "su"]


@pytest.mark.parametrize("cut", [3, 10, 40, -1])
def test_truncated_plain_file_is_named(files, tmp_path, cut):
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte .*Delete it"):
        MNIST(root=tmp_path, split="test").load()


@pytest.mark.parametrize(
    "damage", [lambda b: b[:30], lambda b: b"no gzip", lambda b: b[:20] + b"\0\0\0" + b[23:]]
)
def test_damaged_gzip_is_named(files, tmp_path, damage):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read.*Delete it"):
        MNIST(root=tmp_path).load()


def test_labels_that_do_not_match_the_images_are_refused(files, tmp_path):
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(2, dtype=np.uint8))
    with pytest.raises(InputError, match="3 images but 2 labels"):
        MNIST(root=tmp_path, split="test").load()
