"""Other numbers of clusters of a finished run, without training, and images of one or no client."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import score
from fedmcc.runs import experiment
from fedmcc.runs.build import reopen
from fedmcc.runs.cluster_choice import HIERARCHY_FILE
from fedmcc.runs.clusters import Edits, load_edits, load_geometry
from fedmcc.runs.corrections import name_cluster, set_clusters
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import Predictor

pytestmark = pytest.mark.slow  # takes seconds

TABLE = {
    "clusters": 3,
    "device": "cpu",
    "threads": 1,
    "data": {"name": "synthetic", "samples": 60, "classes": 3, "size": 8},
    "encoder": {"width": 4},
    "training": {"batch_size": 20},
    "method": {"rounds": 1},
    "partition": {"clients": 2},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return experiment.run(parse(TABLE), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the run, which a test may change."""
    return Run(Path(shutil.copytree(finished.path, tmp_path / "run")))


def table(run):
    """The cluster of each image of the run."""
    with run.assignments_file.open() as file:
        return [int(row["cluster"]) for row in csv.DictReader(file)]


def everything(run):
    """The content of all files of the run."""
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("clusters", [2, 5])
def test_another_number_is_that_of_table_scores_geometry_and_prediction(run, clusters):
    network = run.model_file.read_bytes()
    set_clusters(run, clusters, force=False)
    scores = run.read_json("scores.json")
    assert scores["clusters"] == len(scores["sizes"]) == len(load_geometry(run).centres) == clusters
    assert scores["sizes"] == np.bincount(table(run), minlength=clusters).tolist()
    trained = reopen(run)
    soft = trained.scorer.extract(trained.net.online).assignments
    np.testing.assert_array_equal(soft.argmax(axis=1), table(run))
    assert Predictor.load(run).assign(trained.scorer.images).judgement is not None
    assert run.model_file.read_bytes() == network  # nothing was trained


def test_the_former_number_can_be_set_again(run):
    table_before, scores = table(run), run.read_json("scores.json")
    set_clusters(run, 5, force=False)
    assert table(run) != table_before
    set_clusters(run, 3, force=False)
    assert table(run) == table_before
    assert run.read_json("scores.json") == scores


@pytest.mark.parametrize("clusters", [0, 1, 51])
def test_a_number_that_the_hierarchy_does_not_have_changes_nothing(run, clusters):
    before = everything(run)
    with pytest.raises(InputError, match=rf"{clusters} clusters: the hierarchy of .* has 2 to \d+\."):
        set_clusters(run, clusters, force=True)
    with pytest.raises(InputError, match=f"{clusters} clusters"):
        Predictor.load(run, clusters)
    assert everything(run) == before


def test_an_unfinished_run_keeps_its_number(run):
    run.scores_file.unlink()
    before = everything(run)
    with pytest.raises(InputError, match="is not complete: finish it with `fedmcc resume`"):
        set_clusters(run, 2, force=True)
    assert everything(run) == before


def test_more_clusters_than_images_are_refused_before_anything_changes(run):
    before = everything(run)
    with pytest.raises(InputError, match="61 clusters, but only 60 images to score"):
        set_clusters(run, 61, force=True)
    assert everything(run) == before


def test_names_are_lost_by_force_alone(run):
    name_cluster(run, 0, "cracked tiles")
    before = everything(run)
    with pytest.raises(InputError, match=r"has names, merges or splits .* add --force to remove them"):
        set_clusters(run, 2, force=False)
    assert everything(run) == before
    set_clusters(run, 2, force=True)
    assert load_edits(run) == Edits()


def test_a_run_of_another_clustering_has_no_other_numbers(run):
    (run.path / HIERARCHY_FILE).unlink()
    with pytest.raises(InputError, match=r"has no hierarchy of clusters: only clustering.name = informative"):
        set_clusters(run, 2, force=False)


def test_a_prediction_with_another_number_changes_nothing_and_is_that_after_setting_it(run):
    name_cluster(run, 0, "cracked tiles")
    images, before = reopen(run).scorer.images, everything(run)
    predicted = Predictor.load(run, 4).assign(images)
    assert predicted.names == {}  # it is the name of another cluster
    assert everything(run) == before
    set_clusters(run, 4, force=True)
    np.testing.assert_array_equal(Predictor.load(run).assign(images).clusters, predicted.clusters)


@pytest.mark.parametrize("clusters", [None, 2])
def test_images_of_a_client_get_the_clusters_that_they_have_in_the_run(run, clusters):
    if clusters:
        set_clusters(run, clusters, force=False)
    scorer = reopen(run).scorer
    for site in (0, 1):
        predicted = Predictor.load(run, site=str(site)).assign(scorer.images)
        own = scorer.owners == site
        np.testing.assert_array_equal(predicted.clusters[own], np.array(table(run))[own])


def test_a_client_that_the_run_does_not_have_is_refused_with_those_that_it_has(run):
    with pytest.raises(InputError, match=r"site of .*'2'.*0, 1"):
        Predictor.load(run, site="2")
    with pytest.raises(InputError, match="leave out --clusters"):
        Predictor.load(run, 2, site="1")


def test_a_run_whose_clients_lack_images_is_scored_on_these_apart(tmp_path):
    partition = {"clients": 2, "withheld": 0.2}
    run = experiment.run(parse(TABLE | {"partition": partition}), tmp_path / "run")
    scores, scorer = run.read_json("scores.json")["scores"], reopen(run).scorer
    assert set(scores) == {"pixels", "features", "head", "own", "further"}
    assert (scorer.owners < 0).sum() == 12  # 0.2 of 60
    predicted = Predictor.load(run).assign(scorer.images).clusters
    for name, rows in (("head", scorer.owners >= 0), ("further", scorer.owners < 0)):
        expected = score(scorer.images.labels[rows], predicted[rows])
        assert scores[name]["acc"] == pytest.approx(expected.acc)
    own = score(scorer.images.labels[scorer.owners >= 0], np.array(table(run))[scorer.owners >= 0])
    assert scores["own"]["acc"] == pytest.approx(own.acc)
