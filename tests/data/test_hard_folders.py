"""Folders as people have them: each has a clear outcome."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmcc.data import image_files
from fedmcc.data.decode import decode
from fedmcc.data.folder import Folder
from fedmcc.errors import InputError


def test_only_damaged_images_are_named(tmp_path, picture):
    whole = picture(tmp_path / "images" / "a.png").read_bytes()
    (tmp_path / "images" / "a.png").write_bytes(whole[:60])
    (tmp_path / "images" / "b.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    with pytest.raises(InputError, match=r"2 files skipped \(a\.png: .*; b\.jpg: Truncated File Read\)"):
        Folder(root=tmp_path / "images").load()


def test_an_image_of_over_a_hundred_megapixels_is_skipped_before_it_is_decoded(
    tmp_path, picture, monkeypatch
):
    picture(tmp_path / "images" / "a.png")
    Image.new("1", (10_001, 10_000)).save(tmp_path / "images" / "b.png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", _refuse_large(Image.Image.load))
    assert Folder(root=tmp_path / "images").load().skipped == ("b.png: too many pixels",)


def _refuse_large(load):
    from PIL.ImageFile import ImageFile

    original = ImageFile.load

    def checked(image):
        assert image.width < 10_000
        return original(image)

    return checked


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=50)
    assert decode(tmp_path / "a.gif", (8, 8), 3)[:, 4, 4].tolist() == [255, 0, 0]


def test_names_with_any_characters_are_kept(tmp_path, picture):
    names = sorted(["Größe 猫.png", "two\nlines.png", 'a, "quoted".png', " space.png"])
    for name in names:
        picture(tmp_path / "images" / name)
    os.rename(picture(tmp_path / "images" / "x.png"), os.fsencode(tmp_path / "images") + b"/\xff.png")  # noqa: PTH104
    images = Folder(root=tmp_path / "images").load()
    assert images.names == sorted([*names, os.fsdecode(b"\xff.png")])


def test_links_that_form_a_loop_are_followed_once(tmp_path, picture):
    picture(tmp_path / "images" / "a" / "1.png")
    picture(tmp_path / "images" / "b" / "2.png")
    (tmp_path / "images" / "a" / "to-b").symlink_to(tmp_path / "images" / "b")
    (tmp_path / "images" / "b" / "to-a").symlink_to(tmp_path / "images" / "a")
    (tmp_path / "images" / "self.png").symlink_to(tmp_path / "images" / "self.png")
    images = Folder(root=tmp_path / "images").load()
    assert len(images) == 2
    assert [entry.split(":")[0] for entry in images.skipped] == ["self.png"]


def test_a_file_without_read_permission_is_named(tmp_path, picture, monkeypatch):
    picture(tmp_path / "images" / "a.png")
    secret = picture(tmp_path / "images" / "secret.png")
    secret.chmod(0)
    if os.access(secret, os.R_OK):  # the tests run as root, who may read everything
        monkeypatch.setattr("fedmcc.data.decode.open_image", _refusing(secret))
    assert Folder(root=tmp_path / "images").load().skipped == ("secret.png: Permission denied",)


def test_a_file_that_has_become_readable_is_read(tmp_path, picture, monkeypatch):
    picture(tmp_path / "images" / "a.png")
    secret = picture(tmp_path / "images" / "secret.png")
    with monkeypatch.context() as before:
        before.setattr("fedmcc.data.decode.open_image", _refusing(secret))
        before.setattr(os, "access", lambda path, mode: Path(path) != secret)
        assert len(Folder(root=tmp_path / "images").load()) == 1
    assert len(Folder(root=tmp_path / "images").load()) == 2


def test_a_folder_without_permission_is_named(tmp_path, picture, monkeypatch):
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "secret" / "b.png")
    whole = os.scandir

    def refusing(path):
        if not isinstance(path, int) and Path(path).name in ("secret", "closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return whole(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert Folder(root=tmp_path / "images").load().skipped == ("folder secret: Permission denied",)
    (tmp_path / "closed").mkdir()
    with pytest.raises(InputError, match=r"closed cannot be read .*Permission denied.*: make it readable"):
        Folder(root=tmp_path / "closed").load()


def _refusing(secret):
    from fedmcc.data.formats import open_image

    def opened(path, max_pixels):
        if path == secret:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_image(path, max_pixels)

    return opened


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, picture, cache, monkeypatch):
    picture(tmp_path / "images" / "a.png")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(image_files, "write_images", full)
    with pytest.raises(InputError, match=r"No space left on device\. Set FEDMCC_DATA .* enough free space"):
        Folder(root=tmp_path / "images").load()
    assert list((cache / "decoded").iterdir()) == []


def test_images_with_sixteen_bits_and_three_channels_are_read(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = np.zeros((20, 20, 3), dtype=np.uint16)
    values[..., 0] = 65535
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb")
    assert decode(tmp_path / "a.tif", (8, 8), 3)[:, 4, 4].tolist() == [255, 0, 0]
