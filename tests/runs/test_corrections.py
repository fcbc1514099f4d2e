"""Corrections are checked before anything is stored."""

import pytest

from fedmcc.errors import InputError
from fedmcc.runs.clusters import Edits, load_edits
from fedmcc.runs.corrections import merge_clusters, name_cluster
from fedmcc.runs.directory import Run


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    run.write_json("scores.json", {"clusters": 4})
    return run


def test_names_and_merges_are_stored_one_after_the_other(run):
    name_cluster(run, 1, "cracked tiles")
    stored = merge_clusters(run, 1, [3])
    assert stored == load_edits(run) == Edits({1: "cracked tiles"}, {3: 1})


@pytest.mark.parametrize(
    ("cluster", "others", "sentence"),
    [
        (1, [4], "no cluster 4"),
        (1, [2, 2], "given twice"),
        (1, [1], "given twice"),
        (0, [1, 2, 3], "needs 2 clusters or more"),
    ],
)
def test_a_merge_that_makes_no_sense_changes_nothing(run, cluster, others, sentence):
    with pytest.raises(InputError, match=sentence):
        merge_clusters(run, cluster, others)
    assert load_edits(run) == Edits()


def test_a_run_that_is_not_complete_is_refused(tmp_path):
    with pytest.raises(InputError, match="not complete"):
        name_cluster(Run(tmp_path), 0, "x")
