"""What a run directory says is read as it is, and what is damaged is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmcc.errors import InputError
from fedmcc.report.run_facts import read
from fedmcc.runs.directory import Run

Written = Callable[..., Run]


def test_all_files_are_read(written: Written) -> None:
    facts = read(written(acc=0.25).path)
    assert facts.option("method") == "mcc"
    assert [row["stage"] for row in facts.rows] == ["first", "first", "second"]
    assert facts.assigned is not None
    assert facts.assigned.clusters.tolist() == [0, 0, 1, 1]
    assert facts.assigned.classes == ("x", "y")
    assert facts.assigned.labels is not None
    assert facts.assigned.labels.tolist() == [0, 0, 1, 0]
    assert facts.shares is not None
    assert facts.shares.owners().tolist() == [0, 1, 0, 1]


def test_numbers_are_classes_in_their_order(written: Written) -> None:
    run = written()
    lines = "".join(f"{number},0,,{label}\n" for number, label in enumerate((10, 9, "", 2)))
    run.assignments_file.write_text("image,cluster,confidence,label\n" + lines)
    assigned = read(run.path).assigned
    assert assigned is not None
    assert assigned.classes == ("2", "9", "10")
    assert assigned.confidence is None
    assert np.array_equal(assigned.labels, [2, 1, -1, 0])


@pytest.mark.parametrize("name", ["config.toml", "assignments.csv", "partition.npz", "scores.json"])
def test_a_damaged_file_is_named(written: Written, name: str) -> None:
    path = written().path / name
    path.write_bytes(b"image,cluster\nx,[[\xff")
    with pytest.raises(InputError, match=rf"{name} is damaged: restore it from a copy"):
        read(path.parent)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("assignments.csv", "image,cluster,confidence,label\n"),
        ("assignments.csv", "image,cluster,confidence,label\na,-1,,\n"),
        ("scores.json", '{"scores": {"head": {"acc": 0.5}}}'),
        ("scores.json", '{"scores": {}, "knn": "0.5"}'),
        ("evaluation.json", '{"linear": {"acc": {"mean": 0.5, "values": null}}}'),
        ("evaluation.json", '{"linear": {"acc": 0.5}}'),
    ],
)
def test_a_file_that_lacks_what_it_should_have_is_named(written: Written, name: str, text: str) -> None:
    path = written().path / name
    path.write_text(text)
    with pytest.raises(InputError, match=rf"{name} is damaged: restore it from a copy"):
        read(path.parent)


@pytest.mark.parametrize("text", ['method = "sgd"', 'clusters = "ten"', "[partition]\nclients = []"])
def test_the_configuration_of_another_program_is_refused(written: Written, text: str) -> None:
    run = written()
    run.config_file.write_text(text)
    with pytest.raises(InputError, match=r"config\.toml is not of a fedmcc run: give a directory"):
        read(run.path)


@pytest.mark.parametrize("line", ['{"epoch": 1, "accuracy": 0.5}', '{"stage": 1}'])
def test_the_metrics_of_another_program_are_refused(written: Written, line: str) -> None:
    run = written()
    run.metrics_file.write_text(line + "\n")
    with pytest.raises(InputError, match=r"Line 1 of .*metrics\.jsonl is not a round of a fedmcc run"):
        read(run.path)


def test_a_run_without_a_finished_round_is_refused(written: Written) -> None:
    run = written()
    run.metrics_file.write_text('{"stage": "first", "rou')
    with pytest.raises(InputError, match="no finished round yet"):
        read(run.path)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        read(tmp_path)
