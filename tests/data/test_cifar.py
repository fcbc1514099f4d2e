import io
import tarfile

import numpy as np
import pytest

from fedmcc.data.cifar import CIFAR10, CIFAR20, CIFAR100
from fedmcc.errors import InputError

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def record(labels: list[int], row: int, column: int, channel: int) -> bytes:
    """A record of label bytes and a black image with one white pixel."""
    pixels = bytearray(3072)
    pixels[channel * 1024 + row * 32 + column] = 255
    return bytes(labels) + bytes(pixels)


@pytest.fixture
def ten(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number, name in enumerate(BATCHES):
        (folder / name).write_bytes(record([number], 1, 2, 0) + record([9], 30, 31, 2))
    (folder / "batches.meta.txt").write_text("cat\ndog\n\n")
    return folder


@pytest.fixture
def hundred(tmp_path):
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(record([7, 77], 3, 4, 1))
    (tmp_path / "fine_label_names.txt").write_text("apple\nbear\n")
    (tmp_path / "coarse_label_names.txt").write_text("fish\nflowers\n")
    return tmp_path


def test_cifar10_puts_each_byte_at_its_channel_row_and_column(ten):
    images = CIFAR10(root=ten.parent, split="train+test").load()
    assert images.images.shape == (12, 3, 32, 32)
    assert np.argwhere(images.images[:2]).tolist() == [[0, 0, 1, 2], [1, 2, 30, 31]]
    assert images.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert images.classes == ("cat", "dog")


def test_cifar20_is_cifar100_with_the_first_label_byte(hundred):
    fine, coarse = CIFAR100(root=hundred).load(), CIFAR20(root=hundred).load()
    np.testing.assert_array_equal(fine.images, coarse.images)
    assert np.argwhere(fine.images).tolist() == [[0, 1, 3, 4]]
    assert (fine.labels.tolist(), coarse.labels.tolist()) == ([77], [7])
    assert (fine.classes, coarse.classes) == (("apple", "bear"), ("fish", "flowers"))


def test_archive_is_unpacked_once_into_its_folder(ten, tmp_path):
    root = tmp_path / "packed"
    root.mkdir()
    with tarfile.open(root / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(ten, ten.name)
    first = CIFAR10(root=root).load()
    (root / "cifar-10-binary.tar.gz").unlink()
    np.testing.assert_array_equal(CIFAR10(root=root).load().images, first.images)
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-bin"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no archive"])
def test_damaged_archive_is_named_and_leaves_nothing_half_unpacked(ten, tmp_path, damage):
    root = tmp_path / "packed"
    root.mkdir()
    with tarfile.open(root / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(ten, ten.name)
    archive = root / "cifar-10-binary.tar.gz"
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz is damaged.*Delete it"):
        CIFAR10(root=root).load()
    assert list(root.iterdir()) == [archive]


def test_archive_cannot_write_outside_its_folder(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/../../escaped")
        tar.addfile(member, io.BytesIO())
    with pytest.raises(InputError, match="outside its folder"):
        CIFAR10(root=tmp_path).load()
    assert not (tmp_path.parent / "escaped").exists()


def test_truncated_and_missing_batches_are_named(ten):
    (ten / "data_batch_3.bin").write_bytes(b"\0" * 5000)
    with pytest.raises(InputError, match=r"data_batch_3\.bin is truncated.*Delete"):
        CIFAR10(root=ten).load()
    (ten / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin is missing"):
        CIFAR10(root=ten).load()
