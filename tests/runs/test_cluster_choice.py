import json

import numpy as np
import pytest

from fedmcc.config import parse
from fedmcc.evaluation.assignments import table_rows
from fedmcc.report.cluster_choice import choice_chart
from fedmcc.runs import experiment
from fedmcc.runs.build import reopen
from fedmcc.runs.cluster_choice import sentences
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


def test_the_run_stores_the_curve_the_choice_and_two_runners_up(run):
    content = json.loads((run.path / "cluster-number.json").read_text())
    assert [point["clusters"] for point in content["curve"]] == [2, 3, 4, 5, 6]
    by_score = sorted(content["curve"], key=lambda point: -point["score"])
    best = [point["clusters"] for point in by_score]
    assert [content["chosen"], *content["runners_up"]] == best[:3]
    assert f"{best[0]} ({by_score[0]['score']:.2f}); next: {best[1]}" in sentences(run)[0]
    line, _ = choice_chart(run)["choice"]["data"]
    assert line["x"] == [2, 3, 4, 5, 6]
    assert line["marker"]["size"].index(11) == best[0] - 2


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
