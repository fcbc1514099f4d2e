"""The files of a run directory are read, and an error names a damaged one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmcc.errors import InputError
from fedmcc.report.run_facts import read_run
from fedmcc.runs.directory import Run

Written = Callable[..., Run]


def test_all_files_are_read(written: Written) -> None:
    facts = read_run(written(acc=0.25).path)
    assert facts.option("method") == "mcc"
    assert [row["stage"] for row in facts.rows] == ["first", "first", "second"]
    assert facts.assignments is not None
    assert facts.assignments.clusters.tolist() == [0, 0, 1, 1]
    assert facts.assignments.classes == ("x", "y")
    assert facts.assignments.labels is not None
    assert facts.assignments.labels.tolist() == [0, 0, 1, 0]
    assert facts.partition is not None
    assert facts.partition.owners(5).tolist() == [0, 1, 0, 1, 2]  # 2: of no client


def test_numeric_classes_are_sorted_by_value(written: Written) -> None:
    run = written()
    lines = "".join(f"{number},0,,{label}\n" for number, label in enumerate((10, 9, "", 2)))
    run.assignments_file.write_text("image,cluster,confidence,label\n" + lines)
    assignments = read_run(run.path).assignments
    assert assignments is not None
    assert assignments.classes == ("2", "9", "10")
    assert assignments.confidence is None
    assert np.array_equal(assignments.labels, [2, 1, -1, 0])


@pytest.mark.parametrize("name", ["config.toml", "assignments.csv", "partition.npz", "scores.json"])
def test_a_damaged_file_is_named(written: Written, name: str) -> None:
    path = written().path / name
    path.write_bytes(b"image,cluster\nx,[[\xff")
    with pytest.raises(InputError, match=rf"{name} is damaged: restore it from a copy"):
        read_run(path.parent)


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
def test_a_file_without_required_keys_is_named(written: Written, name: str, text: str) -> None:
    path = written().path / name
    path.write_text(text)
    with pytest.raises(InputError, match=rf"{name} is damaged: restore it from a copy"):
        read_run(path.parent)


@pytest.mark.parametrize("text", ['method = "sgd"', 'clusters = "ten"', "[partition]\nclients = []"])
def test_the_configuration_of_another_program_is_refused(written: Written, text: str) -> None:
    run = written()
    run.config_file.write_text(text)
    with pytest.raises(InputError, match=r"config\.toml was not written by fedmcc: give a directory"):
        read_run(run.path)


@pytest.mark.parametrize("line", ['{"epoch": 1, "accuracy": 0.5}', '{"stage": 1}'])
def test_the_metrics_of_another_program_are_refused(written: Written, line: str) -> None:
    run = written()
    run.metrics_file.write_text(line + "\n")
    with pytest.raises(InputError, match=r"Line 1 of .*metrics\.jsonl is not a round of a fedmcc run"):
        read_run(run.path)


def test_a_run_without_a_finished_round_is_refused(written: Written) -> None:
    run = written()
    run.metrics_file.write_text('{"stage": "first", "rou')
    with pytest.raises(InputError, match="no finished round yet"):
        read_run(run.path)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        read_run(tmp_path)
