import os
import shutil

import numpy as np
import pytest

from fedmcc.data import image_files
from fedmcc.data.folder import Folder
from fedmcc.errors import InputError


@pytest.fixture
def root(tmp_path, picture):
    for name in ("dogs/b.png", "cats/z.jpg", "cats/deep/a.bmp", "cats/.hidden.png", ".trash/c.png"):
        picture(tmp_path / "images" / name)
    return tmp_path / "images"


def test_files_are_sorted_without_hidden_ones_and_subfolders_are_classes(root):
    images = Folder(root=root, size=8).load()
    assert images.names == ["cats/deep/a.bmp", "cats/z.jpg", "dogs/b.png"]
    assert images.labels.tolist() == [0, 0, 1]
    assert images.classes == ("cats", "dogs")
    assert images.images.shape == (3, 3, 8, 8)
    assert images.skipped_message() is None


def test_labels_are_optional(root, picture):
    assert Folder(root=root, labels=False).load().labels is None
    assert Folder(root=root / "cats").load().labels is None
    picture(root / "loose.png")
    assert Folder(root=root).load().labels is None
    with pytest.raises(InputError, match=r"loose\.png is not in a class folder"):
        Folder(root=root, labels=True).load()


def test_a_text_file_beside_the_class_folders_keeps_the_labels(root):
    (root / "README.txt").write_text("about these images")
    for labels in ("auto", True):
        images = Folder(root=root, labels=labels).load()
        assert images.labels.tolist() == [0, 0, 1]
        assert images.skipped == ("README.txt: not an image",)


def test_damaged_files_are_named_counted_and_skipped_also_when_cached(root):
    (root / "cats" / "notes.txt").write_text("no image")
    cut = root / "dogs" / "cut.png"
    cut.write_bytes((root / "dogs" / "b.png").read_bytes()[:200])
    (root / "dogs" / "empty.jpg").touch()
    (root / "dogs" / "broken link.png").symlink_to(root / "nowhere")
    for _ in range(2):
        images = Folder(root=root).load()
        assert len(images) == len(images.labels) == len(images.names) == 3
        assert images.skipped_message().startswith("Skipped 4 unreadable files: cats/notes.txt: not an image")
        assert [entry.split(":")[0] for entry in images.skipped[1:]] == [
            *("dogs/broken link.png", "dogs/cut.png", "dogs/empty.jpg")
        ]


def test_a_long_list_of_skipped_files_is_shortened(root):
    for number in range(15):
        (root / f"{number:02}.txt").touch()
    message = Folder(root=root).load().skipped_message()
    assert "15 unreadable files" in message
    assert "09.txt" in message
    assert message.endswith("; and 5 more.")


def test_image_of_too_many_pixels_is_skipped(root, picture, monkeypatch):
    monkeypatch.setattr("fedmcc.data.decode.MAX_IMAGE_PIXELS", 200)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    picture(root / "dogs" / "huge.png", size=(16, 16))
    picture(root / "dogs" / "vast.png", size=(20, 20))
    expected = ("dogs/huge.png: too many pixels", "dogs/vast.png: too many pixels")
    assert Folder(root=root).load().skipped == expected


def test_no_readable_image_is_an_input_error_that_leaves_no_cache(tmp_path, cache):
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match=r"images is empty"):
        Folder(root=tmp_path / "images").load()
    (tmp_path / "images" / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"notes\.txt is not a readable image \(not an image\)"):
        Folder(root=tmp_path / "images").load()
    (tmp_path / "images" / "more.txt").write_text("no image")
    with pytest.raises(
        InputError, match=r"No readable image in .*images, 2 files skipped \(more\.txt: not an"
    ):
        Folder(root=tmp_path / "images").load()
    assert list((cache / "decoded").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs data.root"),
        ({"root": "nowhere"}, "There is no folder"),
        ({"root": __file__}, "is a file: give the folder that holds your images"),
        ({"size": 0}, "data.size is 0"),
        ({"limit": 0}, "data.limit is 0"),
    ],
)
def test_wrong_option_gives_one_sentence(root, options, sentence):
    given = {"root": root} | options if options else {}
    if isinstance(given.get("root"), str):
        given["root"] = root / given["root"]
    with pytest.raises(InputError, match=sentence):
        Folder(**given).load()


def test_channels_follow_the_files_unless_given(tmp_path, picture):
    for name, mode in (("a.png", "L"), ("b.png", "1"), ("c.png", "LA")):
        picture(tmp_path / "grey" / name, mode)
    assert Folder(root=tmp_path / "grey").load().images.shape[1] == 1
    assert Folder(root=tmp_path / "grey", channels=3).load().images.shape[1] == 3
    picture(tmp_path / "grey" / "d.png", "RGB")
    assert Folder(root=tmp_path / "grey").load().images.shape[1] == 3
    assert Folder(root=tmp_path / "grey", channels=1).load().images.shape[1] == 1


def test_cache_is_mapped_and_used_until_a_file_or_an_option_changes(root, monkeypatch):
    calls = []
    decode = image_files.decode
    monkeypatch.setattr(image_files, "decode", lambda *given: calls.append(given) or decode(*given))
    first, again = Folder(root=root).load(), Folder(root=root).load()
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(first.images, again.images)
    assert len(calls) == 3
    os.utime(root / "dogs" / "b.png", ns=(1, 1))
    Folder(root=root).load()
    Folder(root=root, size=32).load()
    assert len(calls) == 9


def test_blocks_do_not_change_what_is_decoded(root, cache, monkeypatch):
    whole = np.array(Folder(root=root).load().images)
    shutil.rmtree(cache)
    monkeypatch.setattr(image_files, "BLOCK_IMAGES", 2)
    np.testing.assert_array_equal(Folder(root=root).load().images, whole)


@pytest.mark.parametrize("name", ["images.npy", "skipped.json"])
def test_damaged_cache_is_made_again(root, cache, name):
    whole = np.array(Folder(root=root).load().images)
    (file,) = cache.glob(f"decoded/*/{name}")
    file.write_bytes(file.read_bytes()[:-1])
    np.testing.assert_array_equal(Folder(root=root).load().images, whole)


def test_interrupted_decoding_leaves_no_cache(root, cache, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(image_files, "decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Folder(root=root).load()
    assert list((cache / "decoded").iterdir()) == []


def test_cache_folder_that_cannot_be_written_is_an_input_error(root, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMCC_DATA", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"Could not write .*Set FEDMCC_DATA"):
        Folder(root=root).load()


def test_limit_takes_files_of_every_class(tmp_path, picture):
    for number in range(12):
        picture(tmp_path / "images" / f"class{number // 4}" / f"{number:02}.png")
    images = Folder(root=tmp_path / "images", limit=3).load()
    assert sorted(images.labels.tolist()) == [0, 1, 2]


def test_a_link_to_a_parent_folder_does_not_loop(root):
    (root / "cats" / "loop").symlink_to(root)
    assert len(Folder(root=root).load()) == 3
