import numpy as np
import pytest
from PIL import Image

from fedmcc.data.decode import decode

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def halves(path, mode, left, right, **options):
    """An image of 40 x 40 pixels, its left half of one colour and its right half of another."""
    image = Image.new(mode, (40, 40), right)
    image.paste(left, (0, 0, 20, 40))
    image.save(path, **options)
    return path


def colours(pixels):
    """The colours in the middle of the left half and of the right half."""
    return tuple(pixels[:, 10, 4].tolist()), tuple(pixels[:, 10, 15].tolist())


@pytest.mark.parametrize(
    ("mode", "given", "suffix", "expected"),
    [
        ("1", (0, 1), ".png", (BLACK, WHITE)),
        ("L", (0, 200), ".png", (BLACK, (200, 200, 200))),
        ("LA", ((0, 255), (0, 0)), ".png", (BLACK, WHITE)),
        ("RGB", (RED, BLACK), ".bmp", (RED, BLACK)),
        ("RGBA", ((*RED, 255), (*RED, 0)), ".webp", (RED, WHITE)),
        ("CMYK", ((0, 255, 255, 0), (0, 0, 0, 255)), ".tif", (RED, BLACK)),
        ("I;16", (0, 4095), ".png", (BLACK, WHITE)),
        ("F", (-1.0, 1.0), ".tif", (BLACK, WHITE)),
    ],
)
def test_every_mode_becomes_eight_bit_colours(tmp_path, mode, given, suffix, expected):
    options = {"lossless": True} if suffix == ".webp" else {}
    path = halves(tmp_path / f"image{suffix}", mode, *given, **options)
    assert colours(decode(path, (20, 20), 3)) == expected


def test_transparent_palette_colour_becomes_white(tmp_path):
    image = Image.new("P", (40, 40), 1)
    image.putpalette([*RED, *BLACK])
    image.paste(0, (0, 0, 20, 40))
    image.save(tmp_path / "image.gif", transparency=1)
    assert colours(decode(tmp_path / "image.gif", (20, 20), 3)) == (RED, WHITE)


def test_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotate by 90 degrees clockwise
    halves(tmp_path / "image.png", "L", 0, 255, exif=exif)
    upright = decode(tmp_path / "image.png", (20, 20), 1)[0]
    assert (upright[4] == 0).all()
    assert (upright[15] == 255).all()


@pytest.mark.parametrize("portrait", [False, True])
def test_shorter_side_is_scaled_and_the_centre_kept(tmp_path, portrait):
    ramp = np.tile(np.arange(40, dtype=np.uint8) * 6, (20, 1))  # 40 wide, 20 high
    Image.fromarray(ramp.T if portrait else ramp).save(tmp_path / "image.png")
    pixels = decode(tmp_path / "image.png", (10, 10), 1)[0]
    slow = ramp[:, 10:30].reshape(10, 2, 10, 2).mean(axis=(1, 3))
    assert abs((pixels.T if portrait else pixels) - slow).max() <= 1


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 2), (3, 7)])
def test_images_of_any_proportion_get_the_same_shape(tmp_path, size):
    Image.new("RGB", size, RED).save(tmp_path / "image.png")
    pixels = decode(tmp_path / "image.png", (10, 10), 3)
    assert pixels.shape == (3, 10, 10)
    assert (pixels == np.reshape(RED, (3, 1, 1))).all()


def test_large_photograph_is_close_to_its_slow_reduction(tmp_path):
    grid = np.add.outer(np.arange(800), np.arange(800)) * 255 // 1598
    Image.fromarray(grid.astype(np.uint8)).save(tmp_path / "image.jpg", quality=95)
    slow = grid.reshape(20, 40, 20, 40).mean(axis=(1, 3))
    assert abs(decode(tmp_path / "image.jpg", (20, 20), 1)[0] - slow).max() < 4
