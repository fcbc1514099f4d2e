"""Clusters are described as a slow count finds them, and shown by the right images."""

import base64
import io

import numpy as np
from PIL import Image

from fedmcc.data.base import ImageSet
from fedmcc.report.clusters import class_colours, confusion, describe
from fedmcc.report.gallery import build_cards
from fedmcc.report.map_cache import Landscape
from fedmcc.report.palette import palette
from fedmcc.report.run_facts import Assigned
from fedmcc.report.thumbnails import sheet


def assigned(count: int = 60, confident: bool = True) -> Assigned:
    draw = np.random.default_rng(0)
    labels = draw.integers(-1, 3, count)
    clusters = np.where(draw.random(count) < 0.7, (labels + 2) % 4, draw.integers(0, 4, count))
    confidence = draw.random(count).astype(np.float32) if confident else None
    return Assigned(clusters, confidence, labels, ("x", "y", "z"), [str(number) for number in range(count)])


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))


def test_confusion_counts_every_labelled_image_once() -> None:
    found = assigned()
    slow = np.zeros((5, 3), int)
    for cluster, label in zip(found.clusters, found.labels, strict=True):
        if label >= 0:
            slow[cluster, label] += 1
    assert np.array_equal(confusion(found, 5), slow)


def test_clusters_are_in_the_order_of_their_classes_and_lend_them_their_colours() -> None:
    clusters = describe(assigned(), 6)
    assert [cluster.matched for cluster in clusters] == ["x", "y", "z", None, None, None]
    assert [cluster.number for cluster in clusters] == [2, 3, 0, 1, 4, 5]
    assert class_colours(clusters, 3) == [cluster.colour for cluster in clusters[:3]]
    assert sum(cluster.size for cluster in clusters) == 60
    assert [cluster.share for cluster in clusters[-2:]] == [None, None]


def test_many_colours_are_all_different() -> None:
    assert len(set(palette(200))) == 200
    assert palette(3) == palette(200)[:3]


def test_the_gallery_shows_the_most_typical_and_the_least_certain() -> None:
    found = assigned()
    typical = np.random.default_rng(1).random(60).astype(np.float32)
    images = ImageSet(np.zeros((60, 1, 8, 8), np.uint8))
    for card in build_cards(
        images, found, Landscape(np.arange(60), np.zeros((60, 2), np.float32), typical), describe(found, 4)
    ):
        rows = np.flatnonzero(found.clusters == card.cluster.number)
        first = [int(shown.caption.split("image ")[1]) for shown in card.typical]
        last = [int(shown.caption.split("image ")[1]) for shown in card.uncertain]
        assert first == sorted(rows, key=lambda row: -typical[row])[: len(first)]
        assert not set(first) & set(last)
        rest = [row for row in rows if row not in first]
        assert last == sorted(rest, key=lambda row: found.confidence[row])[: len(last)]


def test_images_of_another_class_are_marked() -> None:
    found = assigned(confident=False)
    seen = Landscape(np.arange(60), np.zeros((60, 2), np.float32), np.zeros(60, np.float32))
    for card in build_cards(ImageSet(np.zeros((60, 3, 8, 8), np.uint8)), found, seen, describe(found, 4)):
        for shown in (*card.typical, *card.uncertain):
            label = found.labels[int(shown.caption.split("image ")[1])]
            assert shown.odd == (label >= 0 and card.cluster.matched not in (None, "xyz"[label]))


def test_each_picture_is_at_its_place_on_the_sheet() -> None:
    levels = np.arange(0, 220, 20, dtype=np.uint8)
    images = np.broadcast_to(levels[::-1, None, None, None], (11, 1, 10, 16))
    found = sheet(images, np.arange(11)[::-1])
    assert (found.width, found.height, found.columns, found.rows) == (16, 10, 4, 3)
    pixels = np.asarray(opened(found.url).convert("L"))
    for place, level in enumerate(levels):
        row, column = divmod(place, 4)
        assert abs(int(pixels[row * 10 + 5, column * 16 + 8]) - int(level)) <= 2


def test_large_pictures_become_small() -> None:
    found = sheet(np.zeros((2, 3, 224, 112), np.uint8), np.array([1]))
    assert (found.width, found.height) == (20, 40)
