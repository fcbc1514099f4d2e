"""Federations from the command line: methods, clusterings after them, and participation."""

import json

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app

TINY = """
seed = 1
threads = 1
device = "cpu"
[data]
name = "digits"
limit = 240
[views]
size = 8
[encoder]
width = 2
[partition]
name = "by_class"
clients = 3
[training]
batch_size = 32
learning_rate = 1e-3
"""


def _run(tmp_path, *settings):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    options = [option for setting in settings for option in ("--set", setting)]
    result = CliRunner().invoke(
        app, ["run", "--no-report", str(recipe), "--out", str(tmp_path / "run"), *options]
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((tmp_path / "run/scores.json").read_text())["scores"]


def test_fedmcc_runs_its_two_stages_and_scores_the_head_in_the_second(tmp_path):
    rows, scores = _run(
        tmp_path, "method.name=fedmcc", "method.rounds=2", "clustering.name=mcc", "clustering.rounds=2"
    )
    assert [row["stage"] for row in rows] == ["representation"] * 2 + ["clustering"] * 2
    assert [("acc" in row) for row in rows] == [False, False, True, True]
    assert {"pixels", "features", "head"} == set(scores)


@pytest.mark.parametrize("method", ["fedsimclr", "fedu"])  # without a target network, and with one
@pytest.mark.parametrize(("clustering", "stage"), [("mcc", "clustering"), ("kmeans", "centroids")])
def test_any_representation_can_be_followed_by_a_clustering(tmp_path, method, clustering, stage):
    small = ("method.hidden=16", "method.projections=8", "method.rounds=1", "method.epochs=1")
    rows, scores = _run(tmp_path, f"method.name={method}", f"clustering.name={clustering}", *small)
    assert rows[-1]["stage"] == stage
    assert "head" in scores
    assert rows[0]["participants"] == [0, 1, 2]


def test_without_a_head_k_means_on_features_assigns(tmp_path):
    small = ("method.hidden=16", "method.projections=8", "method.rounds=1", "method.epochs=1")
    _, scores = _run(tmp_path, "method.name=fedu", "clustering.name=none", *small)
    assert set(scores) == {"pixels", "features"}
    assert (tmp_path / "run/assignments.csv").read_text().count("\n") == 241


def test_a_single_client_trains_on_its_shard_and_is_scored_on_all_images(tmp_path):
    rows, _ = _run(tmp_path, "method.name=mcc", "method.rounds=2", "federation.only=1")
    assert [row["participants"] for row in rows] == [[1], [1]]
    assert json.loads((tmp_path / "run/scores.json").read_text())["images"] == 240


def test_a_fraction_of_the_clients_takes_part_in_each_round_of_training(tmp_path):
    rows, _ = _run(tmp_path, "method.rounds=6", "federation.count=1")
    training = [row["participants"] for row in rows if row["loss"] is not None]
    assert all(len(participants) == 1 for participants in training)
    assert len({participants[0] for participants in training}) > 1


def test_the_default_runs_through_all_its_stages(tmp_path):
    rows, scores = _run(tmp_path, "method.name=fedmcc", "method.rounds=2", "partition.name=iid")
    statistics = ["whitening", "prototypes", "clusters"]
    assert [row["stage"] for row in rows] == ["representation", "representation", *statistics]
    assert [row["loss"] is None for row in rows] == [False, False, True, True, True]
    assert [("acc" in row) for row in rows] == [False] * 4 + [True]
    assert "head" in scores


def test_the_default_runs_with_a_few_of_many_clients(tmp_path):
    rows, scores = _run(
        tmp_path,
        *("method.name=fedmcc", "method.rounds=4"),
        *("partition.name=iid", "partition.clients=6", "federation.count=2"),
    )
    asked = [len(row["participants"]) for row in rows]
    assert asked == [2 if row["loss"] is not None else 6 for row in rows]  # statistics need all clients
    assert not any(row["refused"] for row in rows)
    assert "head" in scores
