"""Camera raw is developed upright. The files are written here, tag by tag, as the DNG specification says."""

import struct

import numpy as np
import pytest
from PIL import Image

from fedmcc.data import camera_raw
from fedmcc.data.decode import decode
from fedmcc.data.folder import Folder
from fedmcc.data.survey import file_sides

BYTE, ASCII, SHORT, LONG, RATIONAL, SIGNED_RATIONAL = 1, 2, 3, 4, 5, 10
PACKED = {BYTE: "B", SHORT: "H", LONG: "I", RATIONAL: "I", SIGNED_RATIONAL: "i"}
UPRIGHT, TURN_RIGHT = 1, 6  # values of Orientation; 6: turn a quarter to the right to see it upright
RED_GREEN_GREEN_BLUE = (0, 1, 1, 2)
WHITE = 4000
XYZ_TO_SRGB = (32406, -15372, -4986, -9689, 18758, 415, 557, -2040, 10570)  # in 1/10,000
HEADER = 8  # bytes


def write_dng(path, mosaic, orientation=UPRIGHT):
    """An uncompressed DNG of a mosaic of 16-bit values; every second pixel of every second row is red."""
    height, width = mosaic.shape
    tags = [
        (254, LONG, (0,)),  # a full image
        (256, LONG, (width,)),
        (257, LONG, (height,)),
        (258, SHORT, (16,)),  # bits
        (259, SHORT, (1,)),  # not compressed
        (262, SHORT, (32803,)),  # a colour filter array
        (271, ASCII, b"Test\0"),
        (272, ASCII, b"Test\0"),
        (273, LONG, (HEADER,)),  # where the values are
        (274, SHORT, (orientation,)),
        (277, SHORT, (1,)),
        (278, LONG, (height,)),
        (279, LONG, (mosaic.nbytes,)),
        (33421, SHORT, (2, 2)),
        (33422, BYTE, RED_GREEN_GREEN_BLUE),
        (50706, BYTE, (1, 4, 0, 0)),  # version of DNG
        (50708, ASCII, b"Test\0"),
        (50717, LONG, (WHITE,)),
        (50721, SIGNED_RATIONAL, tuple(n for value in XYZ_TO_SRGB for n in (value, 10_000))),
        (50728, RATIONAL, (1, 1, 1, 1, 1, 1)),  # neutral as shot
        (50778, SHORT, (21,)),  # daylight
    ]
    start = HEADER + mosaic.nbytes
    path.write_bytes(struct.pack("<2sHI", b"II", 42, start) + mosaic.tobytes() + _directory(tags, start))
    return path


def _directory(tags, start):
    """The directory of a TIFF file at this offset, followed by the values that do not fit into it."""
    entries, further = b"", b""
    behind = start + 2 + 12 * len(tags) + 4
    for tag, kind, values in tags:
        packed = values if kind == ASCII else struct.pack(f"<{len(values)}{PACKED[kind]}", *values)
        count = len(values) // (2 if kind in (RATIONAL, SIGNED_RATIONAL) else 1)
        place = packed.ljust(4, b"\0")
        if len(packed) > 4:
            place, further = struct.pack("<I", behind + len(further)), further + packed
        entries += struct.pack("<HHI", tag, kind, count) + place
    return struct.pack("<H", len(tags)) + entries + bytes(4) + further


def mosaic_of_red_above_blue():
    values = np.zeros((64, 96), dtype="<u2")
    values[:32:2, ::2] = WHITE  # red
    values[33::2, 1::2] = WHITE  # blue
    return values


def test_colours_are_developed(tmp_path):
    pytest.importorskip("rawpy")
    pixels = decode(write_dng(tmp_path / "a.dng", mosaic_of_red_above_blue()), (64, 96), 3).astype(int)
    red, green, blue = pixels[:, 8:24].mean(axis=(1, 2))
    assert red > 150 > 80 > max(green, blue)
    red, green, blue = pixels[:, 40:56].mean(axis=(1, 2))
    assert blue > 150 > 80 > max(green, red)


def test_a_photograph_on_its_side_is_turned_upright(tmp_path):
    pytest.importorskip("rawpy")
    path = write_dng(tmp_path / "a.dng", mosaic_of_red_above_blue(), TURN_RIGHT)
    assert file_sides(tmp_path, ["a.dng"]) == [(64, 96)]
    pixels = decode(path, (96, 64), 3).astype(int)
    assert pixels[0, :, 40:56].min() > 150 > 80 > pixels[0, :, 8:24].max()  # the top is now on the right
    assert pixels[2, :, 8:24].min() > 150 > 80 > pixels[2, :, 40:56].max()


def test_large_photographs_are_developed_at_half_their_size_and_huge_ones_not_at_all(tmp_path, monkeypatch):
    pytest.importorskip("rawpy")
    path = write_dng(tmp_path / "a.dng", mosaic_of_red_above_blue())
    assert camera_raw.read_raw(path, 96 * 64).size == (96, 64)
    monkeypatch.setattr(camera_raw, "MIN_SIDE", 32)
    assert camera_raw.read_raw(path, 96 * 64).size == (48, 32)
    with pytest.raises(Image.DecompressionBombError):
        camera_raw.read_raw(path, 96 * 64 - 1)


def test_damaged_camera_raw_is_named_with_a_sentence(tmp_path):
    pytest.importorskip("rawpy")
    folder = tmp_path / "images"
    folder.mkdir()
    write_dng(folder / "a.dng", mosaic_of_red_above_blue())
    (folder / "b.nef").write_bytes(bytes(1000))
    images = Folder(root=folder, size=8).load()
    assert images.names == ["a.dng"]
    assert images.skipped == ("b.nef: damaged, or camera raw of an unknown kind",)
