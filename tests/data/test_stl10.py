import numpy as np
import pytest

from fedmcc.data.stl10 import STL10
from fedmcc.errors import InputError

COUNTS = {"train": 2, "test": 3, "unlabeled": 4}


@pytest.fixture
def images(tmp_path, generator):
    """The expected images of each split, and files that store them column by column."""
    folder, images = tmp_path / "stl10_binary", {}
    folder.mkdir()
    for split, count in COUNTS.items():
        images[split] = generator.integers(256, size=(count, 3, 96, 96), dtype=np.uint8)
        with (folder / f"{split}_X.bin").open("wb") as file:
            for image in images[split]:
                for plane in image:
                    for column in range(96):
                        file.write(bytes(plane[:, column]))
    (folder / "train_y.bin").write_bytes(bytes([1, 10]))
    (folder / "test_y.bin").write_bytes(bytes([3, 2, 1]))
    (folder / "class_names.txt").write_text("airplane\nbird\n")
    return images


def test_planes_are_stored_column_by_column(images, tmp_path):
    train = STL10(root=tmp_path).load()
    np.testing.assert_array_equal(train.images, images["train"])
    assert train.labels.tolist() == [0, 9]
    assert train.classes == ("airplane", "bird")


def test_unlabelled_images_stay_on_disk_and_have_no_label(images, tmp_path):
    unlabelled = STL10(root=tmp_path, split="unlabelled").load()
    assert isinstance(unlabelled.images, np.memmap)
    np.testing.assert_array_equal(unlabelled.images, images["unlabeled"])
    assert unlabelled.labels.tolist() == [-1] * 4


@pytest.mark.parametrize("split", ["train+test", "train+test+unlabelled", "test+unlabelled"])
def test_splits_are_joined_in_the_order_named(images, tmp_path, split):
    joined = STL10(root=tmp_path, split=split).load()
    parts = [images[part.replace("unlabelled", "unlabeled")] for part in split.split("+")]
    np.testing.assert_array_equal(joined.images, np.concatenate(parts))
    assert isinstance(joined.images, np.memmap) == ("unlabelled" in split)
    assert len(joined.labels) == len(joined.images)


@pytest.mark.parametrize("name", ["train_X.bin", "train_y.bin"])
def test_truncated_file_is_named(images, tmp_path, name):
    path = tmp_path / "stl10_binary" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"{name} .*Delete the folder"):
        STL10(root=tmp_path).load()
