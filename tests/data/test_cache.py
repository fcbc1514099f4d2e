import numpy as np
import pytest

from fedmcc.data.cache import create_folder_once, write_images
from fedmcc.errors import InputError


@pytest.mark.parametrize("counts", [[1], [9, 1], [50, 50, 1]])
def test_blocks_are_read_back_as_one_array(tmp_path, generator, counts):
    blocks = [generator.integers(256, size=(count, 3, 5, 4), dtype=np.uint8) for count in counts]
    write_images(tmp_path / "images.npy", iter(block.transpose(0, 1, 3, 2) for block in blocks))
    expected = np.concatenate(blocks).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy", allow_pickle=False), expected)


def test_folder_is_filled_once(tmp_path):
    calls = []
    for _ in range(2):
        create_folder_once(tmp_path / "new" / "folder", lambda folder: calls.append(folder))
    assert len(calls) == 1


def test_a_folder_created_by_another_process_is_kept(tmp_path):
    target = tmp_path / "folder"

    def fill(partial):
        (partial / "file").write_text("second")
        target.mkdir()
        (target / "file").write_text("first")

    assert create_folder_once(target, fill) == target
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_is_an_input_error_and_leaves_nothing(tmp_path):
    def fill(partial):
        (partial / "file").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"Could not write .*folder: No space left.*Set FEDMCC_DATA"):
        create_folder_once(tmp_path / "folder", fill)
    assert list(tmp_path.iterdir()) == []
