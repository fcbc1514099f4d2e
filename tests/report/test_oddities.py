"""Outliers, doubtful images and near-duplicates are the ones that the tables name."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.tsne import nearest_in_sample
from fedmcc.report.clusters import describe
from fedmcc.report.gallery import Album, GalleryImage
from fedmcc.report.map_cache import ImageMap
from fedmcc.report.oddities import Oddities, find_oddities
from fedmcc.report.run_facts import Assignments, read_run
from fedmcc.runs.directory import Run

COUNT = 60
JUDGED = (
    "image,cluster,confidence,label,second,distance,kind\na,0,0.9,,1,0.25,typical\nb,1,0.4,,0,0.75,outlier\n"
)


@pytest.fixture
def album() -> Album:
    draw = np.random.default_rng(0)
    assignments = Assignments(
        clusters=draw.integers(0, 4, COUNT),
        confidence=draw.random(COUNT).astype(np.float32),
        labels=None,
        classes=(),
        names=[str(number) for number in range(COUNT)],
        second=draw.integers(0, 4, COUNT),
        distance=draw.random(COUNT).astype(np.float32),
        outlier=draw.random(COUNT) < 0.7,
    )
    rows = np.arange(COUNT)
    neighbours = np.stack([(rows + 1) % COUNT, (rows + 2) % COUNT], axis=1).astype(np.int32)
    points, typicality = np.zeros((COUNT, 2), np.float32), np.zeros(COUNT, np.float32)
    image_map = ImageMap(rows, points, typicality, neighbours)
    clusters = {cluster.number: cluster for cluster in describe(assignments, 4)}
    return Album(ImageSet(np.zeros((COUNT, 1, 8, 8), np.uint8)), assignments, image_map, clusters)


def rows_of(images: list[GalleryImage]) -> list[int]:
    return [int(image.caption.split("image ")[1]) for image in images]


def test_the_farthest_outliers_are_shown_and_all_are_counted(album: Album) -> None:
    found, table = find_oddities(album, []), album.assignments
    expected = [row for row in range(COUNT) if table.outlier[row]]
    assert found.outlier_count == len(expected) > 24
    assert rows_of(found.outliers) == sorted(expected, key=lambda row: -table.distance[row])[:24]
    assert f"distance {max(table.distance[expected]):.2f}" in found.outliers[0].caption


def test_doubtful_images_have_the_lowest_confidence_and_both_clusters(album: Album) -> None:
    found, table = find_oddities(album, []).doubtful, album.assignments
    rows = rows_of([entry.image for entry in found])
    assert rows == sorted(range(COUNT), key=lambda row: table.confidence[row])[:24]
    assert [entry.first.number for entry in found] == [table.clusters[row] for row in rows]
    assert [entry.second.number for entry in found] == [table.second[row] for row in rows]


def test_certain_images_are_not_doubtful(album: Album) -> None:
    certain = replace(album.assignments, confidence=np.full(COUNT, 0.95, np.float32))
    assert find_oddities(replace(album, assignments=certain), []).doubtful == []


def test_the_largest_groups_of_duplicates_come_first_and_unknown_names_are_left_out(album: Album) -> None:
    found = find_oddities(album, [["1", "2"], ["3", "gone"], ["5", "6", "7"]])
    assert [rows_of(group) for group in found.duplicates] == [[5, 6, 7], [1, 2]]
    assert found.group_count == 2


def test_a_table_without_judgements_has_no_oddities(album: Album) -> None:
    plain = replace(album.assignments, second=None, distance=None, outlier=None)
    assert find_oddities(replace(album, assignments=plain), []) == Oddities()


def test_images_know_the_places_of_similar_ones(album: Album) -> None:
    assert album.image(COUNT - 1).similar == "0 1"


def test_judgements_and_duplicates_are_read_from_the_run(written: Callable[..., Run]) -> None:
    run = written()
    assert read_run(run.path).duplicates == []
    run.assignments_file.write_text(JUDGED)
    (run.path / "duplicates.csv").write_text("image,duplicate_of\nb,a\nc,a\ne,d\n")
    facts = read_run(run.path)
    assert facts.duplicates == [["a", "b", "c"], ["d", "e"]]
    assert facts.assignments.second.tolist() == [1, 0]
    assert facts.assignments.distance.tolist() == [0.25, 0.75]
    assert facts.assignments.outlier.tolist() == [False, True]


def test_damaged_duplicates_are_named(written: Callable[..., Run]) -> None:
    run = written()
    (run.path / "duplicates.csv").write_text("something\nelse\n")
    with pytest.raises(InputError, match=r"duplicates.csv is damaged"):
        _ = read_run(run.path).duplicates


@pytest.mark.parametrize("count", [3, 12, 50])
def test_nearest_in_the_sample_are_those_of_a_slow_search(count: int) -> None:
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    sample = np.arange(1, 40, 2)
    found = nearest_in_sample(features, sample, count)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for row in range(40):
        others = [place for place, other in enumerate(sample) if other != row]
        slow = sorted(others, key=lambda place: -float(unit[row] @ unit[sample[place]]))
        assert found[row].tolist() == slow[: min(count, 19)]
