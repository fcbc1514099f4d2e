import numpy as np
import pytest
from PIL import Image

from fedmcc.data.base import ImageSet
from fedmcc.data.survey import are_photographs, file_sides, near_duplicates, survey


@pytest.fixture
def images(generator):
    return generator.integers(256, size=(20, 3, 24, 24), dtype=np.uint8)


def test_copies_and_recompressed_images_are_found_and_others_are_not(generator, tmp_path):
    colours = generator.integers(256, size=(20, 4, 4, 3), dtype=np.uint8)
    smooth = [Image.fromarray(image).resize((24, 24)) for image in colours]
    smooth[4].save(tmp_path / "a.jpg", quality=90)
    with Image.open(tmp_path / "a.jpg") as again:
        smooth[15] = again.copy()
    smooth[9] = smooth[11] = smooth[2]
    images = np.stack([np.asarray(image).transpose(2, 0, 1) for image in smooth])
    assert sorted(near_duplicates(images)) == [(2, 9, 11), (4, 15)]


def test_blocks_do_not_change_the_groups(images, monkeypatch):
    images[17], images[3] = images[0], images[0]
    whole = near_duplicates(images)
    monkeypatch.setattr("fedmcc.data.survey.BLOCK", 4)
    assert near_duplicates(images) == whole == [(0, 3, 17)]


def test_images_of_little_contrast_are_not_alike_for_that_alone(generator):
    faint = generator.integers(100, 108, size=(12, 1, 8, 8), dtype=np.uint8)
    faint[7] = faint[2] + 90  # the same image, brighter
    faint[9], faint[11] = 5, 250  # without content
    assert sorted(near_duplicates(faint)) == [(2, 7), (9, 11)]


def test_images_smaller_than_a_thumbnail_are_compared(generator):
    tiny = generator.integers(256, size=(5, 1, 3, 4), dtype=np.uint8)
    tiny[4] = tiny[1]
    assert near_duplicates(tiny) == [(1, 4)]


def test_sizes_and_colour_are_those_of_the_files(tmp_path, picture, images):
    for name, size in (("a.png", (10, 20)), ("b.png", (30, 40)), ("c.png", (50, 60))):
        picture(tmp_path / name, size=size)
    (tmp_path / "d.png").write_text("not an image")
    sides = file_sides(tmp_path, ["a.png", "b.png", "c.png", "d.png"])
    found = survey(ImageSet(images), sides)
    assert (found.smallest, found.median, found.largest) == ((10, 20), (30, 40), (50, 60))
    assert not found.grey
    assert survey(ImageSet(images[:, :1]), sides).grey


def test_many_images_are_not_compared(images, monkeypatch):
    monkeypatch.setattr("fedmcc.data.survey.MAX_COMPARED", 19)
    assert survey(ImageSet(images), []).duplicates is None


def _photograph(draw, side):
    """Smooth shapes with the noise of a sensor."""
    small = Image.fromarray(draw.integers(256, size=(4, 4, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC), dtype=float)
    return (smooth + draw.normal(0, 3, smooth.shape)).clip(0, 255).astype(np.uint8)


def _drawing(draw, side):
    """Rectangles of a few colours on white."""
    image = np.full((side, side, 3), 255, np.uint8)
    for top, left in draw.integers(side, size=(5, 2)):
        image[top : top + side // 4, left : left + side // 4] = draw.integers(256, size=3)
    return image


def _grey(draw, side):
    return np.repeat(_photograph(draw, side).mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)


@pytest.mark.parametrize(
    ("paint", "side", "suffix", "expected"),
    [
        (_photograph, 200, "jpg", True),
        (_photograph, 200, "png", True),
        (_photograph, 32, "JPG", True),
        (_photograph, 32, "png", False),
        (_grey, 200, "jpg", False),
        (_drawing, 200, "png", False),
        (_drawing, 200, "jpg", False),
    ],
)
def test_photographs_are_in_colour_not_drawn_and_not_tiny(generator, tmp_path, paint, side, suffix, expected):
    for number in range(6):
        Image.fromarray(paint(generator, side)).save(tmp_path / f"{number}.{suffix}")
    (tmp_path / "6.txt").write_text("not an image")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert are_photographs(tmp_path, names, file_sides(tmp_path, names)) == expected


def test_a_folder_without_a_readable_image_has_no_photographs(tmp_path):
    (tmp_path / "a.jpg").write_text("not an image")
    assert not are_photographs(tmp_path, ["a.jpg"], [])
