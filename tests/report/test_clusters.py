"""Descriptions of clusters match a slow count, and the gallery shows the right images."""

import base64
import io

import numpy as np
from PIL import Image

from fedmcc.data.base import ImageSet
from fedmcc.report.clusters import class_colours, confusion, describe
from fedmcc.report.gallery import Card, GalleryImage, build_cards
from fedmcc.report.map_cache import ImageMap
from fedmcc.report.palette import palette
from fedmcc.report.run_facts import Assignments
from fedmcc.report.thumbnails import sprite_sheet


def random_assignments(count: int = 60, confident: bool = True) -> Assignments:
    draw = np.random.default_rng(0)
    labels = draw.integers(-1, 3, count)
    clusters = np.where(draw.random(count) < 0.7, (labels + 2) % 4, draw.integers(0, 4, count))
    confidence = draw.random(count).astype(np.float32) if confident else None
    return Assignments(
        clusters, confidence, labels, ("x", "y", "z"), [str(number) for number in range(count)]
    )


def decoded(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))


def test_confusion_counts_every_labelled_image_once() -> None:
    assignments = random_assignments()
    slow = np.zeros((5, 3), int)
    for cluster, label in zip(assignments.clusters, assignments.labels, strict=True):
        if label >= 0:
            slow[cluster, label] += 1
    assert np.array_equal(confusion(assignments, 5), slow)


def test_clusters_are_ordered_by_their_classes_which_have_their_colours() -> None:
    clusters = describe(random_assignments(), 6)
    assert [cluster.matched for cluster in clusters] == ["x", "y", "z", None, None, None]
    assert [cluster.number for cluster in clusters] == [2, 3, 0, 1, 4, 5]
    assert class_colours(clusters, 3) == [cluster.colour for cluster in clusters[:3]]
    assert sum(cluster.size for cluster in clusters) == 60
    assert [cluster.share for cluster in clusters[-2:]] == [None, None]


def test_many_colours_are_all_different() -> None:
    assert len(set(palette(200))) == 200
    assert palette(3) == palette(200)[:3]


def cards(assignments: Assignments, typicality: np.ndarray) -> list[Card]:
    """The gallery of empty images: one card for each of the four clusters."""
    image_map = ImageMap(np.arange(60), np.zeros((60, 2), np.float32), typicality.astype(np.float32))
    built = build_cards(
        ImageSet(np.zeros((60, 3, 8, 8), np.uint8)), assignments, image_map, describe(assignments, 4)
    )
    assert sorted(card.cluster.number for card in built) == [0, 1, 2, 3]
    return built


def rows_of(images: list[GalleryImage]) -> list[int]:
    """The rows of the images on a card."""
    return [int(image.caption.split("image ")[1]) for image in images]


def test_the_gallery_shows_the_most_typical_and_the_least_certain() -> None:
    assignments = random_assignments()
    typicality = np.random.default_rng(1).random(60)
    for card in cards(assignments, typicality):
        members = np.flatnonzero(assignments.clusters == card.cluster.number)
        count = min(12, len(members) // 2)
        typical = sorted(members, key=lambda row: -typicality[row])[:count]
        others = sorted(set(members) - set(typical), key=lambda row: assignments.confidence[row])
        assert count > 0
        assert rows_of(card.typical) == typical
        assert rows_of(card.uncertain) == others[:count]


def test_images_of_another_class_are_marked() -> None:
    assignments = random_assignments(confident=False)
    marked = []
    for card in cards(assignments, np.zeros(60)):
        shown = [*card.typical, *card.uncertain]
        labels = assignments.labels[rows_of(shown)]
        other = [label >= 0 and card.cluster.matched not in (None, "xyz"[label]) for label in labels]
        assert [image.mismatched for image in shown] == other
        marked += other
    assert {*marked} == {True, False}


def test_each_image_is_at_its_place_on_the_sheet() -> None:
    levels = np.arange(0, 220, 20, dtype=np.uint8)
    images = np.broadcast_to(levels[::-1, None, None, None], (11, 1, 10, 16))
    sheet = sprite_sheet(images, np.arange(11)[::-1])
    assert (sheet.width, sheet.height, sheet.columns, sheet.rows) == (16, 10, 4, 3)
    pixels = np.asarray(decoded(sheet.url).convert("L"))
    for place, level in enumerate(levels):
        row, column = divmod(place, 4)
        assert abs(int(pixels[row * 10 + 5, column * 16 + 8]) - int(level)) <= 2


def test_large_images_are_reduced() -> None:
    sheet = sprite_sheet(np.zeros((2, 3, 224, 112), np.uint8), np.array([1]))
    assert (sheet.width, sheet.height) == (20, 40)
