import json

import numpy as np
import pytest

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import table_rows
from fedmcc.report.cluster_choice import choice_chart
from fedmcc.runs import experiment
from fedmcc.runs.build import reopen
from fedmcc.runs.cluster_choice import recut, sentences
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import Predictor
from fedmcc.storage.safetensor_files import load_shapes

pytestmark = pytest.mark.slow  # takes seconds


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    table = {
        "clusters": "auto",
        "device": "cpu",
        "threads": 1,
        "data": {"name": "synthetic", "samples": 60, "classes": 3, "size": 8},
        "encoder": {"width": 4},
        "training": {"batch_size": 20},
        "method": {"rounds": 2},
        "partition": {"clients": 2},
    }
    return experiment.run(parse(table), tmp_path_factory.mktemp("auto") / "run")


def test_the_run_stores_what_each_merge_costs_and_the_choice(run):
    content = json.loads((run.path / "cluster-number.json").read_text())
    costs = {point["clusters"]: point["cost"] for point in content["curve"]}
    assert list(costs)[:5] == [2, 3, 4, 5, 6]
    chosen = content["chosen"]
    assert chosen == 2 or costs[chosen] >= content["limit"]
    assert all(costs[number] < content["limit"] for number in range(chosen + 1, 7))  # of 60 images at most 6
    assert sentences(run)[0].startswith(f"Chosen number of clusters: {chosen}. One less would lose")
    line, _ = choice_chart(run)["choice"]["data"]
    assert line["x"] == list(costs)
    assert line["marker"]["size"].index(11) == chosen - 2


@pytest.mark.parametrize("clusters", [2, 5])
def test_the_hierarchy_gives_another_number_of_clusters_without_training(run, clusters):
    trained = reopen(run)
    recut(trained.net, run, clusters)
    rows = trained.scorer.extract(trained.net.online).assignments
    assert rows.shape == (60, clusters)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("clusters", [1, 1_000])
def test_a_number_of_clusters_that_the_hierarchy_does_not_have_is_refused(run, clusters):
    with pytest.raises(InputError, match=rf"{clusters} clusters: the hierarchy of .* has 2 to \d+\."):
        recut(reopen(run).net, run, clusters)


def test_a_run_without_a_hierarchy_is_refused(run, tmp_path):
    with pytest.raises(InputError, match=r"only clustering\.name = informative makes one"):
        recut(reopen(run).net, Run(tmp_path), 3)


def test_network_table_and_scores_have_the_chosen_number(run):
    chosen = run.read_json("cluster-number.json")["chosen"]
    assert load_shapes(run.model_file)["online.cluster_projector.groups"][1] == chosen
    assert run.read_json("scores.json")["clusters"] == chosen == len(run.read_json("scores.json")["sizes"])
    trained = reopen(run)
    extracted = trained.scorer.extract(trained.net.online)
    assert extracted.assignments.shape == (60, chosen)
    np.testing.assert_allclose(extracted.assignments.sum(axis=1), 1, rtol=1e-5)


def test_new_images_are_assigned_by_the_reopened_network(run):
    images = reopen(run).scorer.images
    assignment = Predictor.load(run).assign(images)
    table = run.assignments_file.read_text().splitlines()[1:]
    found = [row["cluster"] for row in table_rows(images, assignment)]
    assert found == [int(line.split(",")[1]) for line in table]
