import csv
import io

import numpy as np
import pytest

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import Assignment, assignments_csv, read_csv


def _images(labels=None, classes=(), names=None):
    return ImageSet(np.zeros((3, 1, 2, 2), dtype=np.uint8), labels, classes, names)


def _assignment(confidence=(0.91239, 0.5, 1.0)):
    values = None if confidence is None else np.array(confidence, dtype=np.float32)
    return Assignment(np.array([2, 0, 1]), values)


def test_each_image_has_a_line_with_its_name_cluster_confidence_and_class():
    images = _images(np.array([1, -1, 0]), ("cat", "dog"), ["a.png", "b/c.png", "d.png"])
    assert assignments_csv(images, _assignment()) == (
        "image,cluster,confidence,label\na.png,2,0.9124,dog\nb/c.png,0,0.5000,\nd.png,1,1.0000,cat\n"
    )


def test_images_without_names_are_named_by_their_index():
    lines = assignments_csv(_images(), _assignment(confidence=None)).splitlines()
    assert lines[1:] == ["0,2,,", "1,0,,", "2,1,,"]


def test_labels_without_class_names_are_numbers():
    lines = assignments_csv(_images(np.array([7, 0, -1])), _assignment()).splitlines()
    assert [line.rsplit(",", 1)[1] for line in lines[1:]] == ["7", "0", ""]


def test_any_name_reads_back_as_it_was():
    names = ['a, "quoted".png', "two\nlines.png", "Größe 猫.png"]
    text = assignments_csv(_images(names=names), _assignment())
    assert [row["image"] for row in csv.DictReader(io.StringIO(text))] == names


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "'=", "''-"])
def test_a_name_that_a_spreadsheet_would_compute_is_text_and_reads_back_as_it_was(start, tmp_path):
    names = [f"{start}cmd|' /C calc'!A0.png", "'quoted'.png", "3.png"]
    path = tmp_path / "assignments.csv"
    path.write_text(assignments_csv(_images(names=names), _assignment()))
    assert [row["image"] for row in read_csv(path)] == names
    with path.open(newline="") as file:
        first, *others = [row["image"] for row in csv.DictReader(file)]
    assert first == f"'{names[0]}"
    assert others == names[1:]


@pytest.mark.parametrize("line", [b"caf\xe9.png,1,,", b"a.png,1", b"a.png,1,,,,,"])
def test_a_damaged_table_is_one_known_error(line, tmp_path):
    (tmp_path / "assignments.csv").write_bytes(b"image,cluster,confidence,label\n" + line)
    with pytest.raises(InputError, match=r"assignments\.csv is damaged: restore it from a copy"):
        read_csv(tmp_path / "assignments.csv")


def test_a_file_name_of_bytes_that_are_not_text_can_be_written():
    name = b"caf\xe9.png".decode(errors="surrogateescape")  # as Python names such a file
    text = assignments_csv(_images(names=[name, "b", "c"]), _assignment())
    assert text.encode().splitlines()[1] == rb"caf\udce9.png,2,0.9124,"


def test_the_most_likely_cluster_of_soft_assignments_is_taken():
    soft = np.array([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]], dtype=np.float32)
    assignment = Assignment.from_soft(soft)
    assert assignment.clusters.tolist() == [1, 0]
    np.testing.assert_array_equal(assignment.confidence, np.array([0.5, 0.9], dtype=np.float32))
