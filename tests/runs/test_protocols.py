import csv
import json
import struct
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import normalize

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.kmeans import federated_kmeans, kmeans
from fedmcc.evaluation.scorer import Scorer
from fedmcc.evaluation.splits import EncodedImages, hold_out_fifth
from fedmcc.numerics.randomness import derive
from fedmcc.runs import build, experiment, protocols
from fedmcc.runs.directory import Run

pytestmark = pytest.mark.slow  # whole runs or processes

SMALL = {
    "device": "cpu",
    "threads": 1,
    "views": {"size": 8},
    "encoder": {"width": 4},
    "training": {"batch_size": 32},
    "method": {"name": "mcc", "rounds": 2},
    "partition": {"name": "by_class", "clients": 3},
}
SHAPES = {"name": "synthetic", "samples": 700, "classes": 7, "size": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on 7 classes of shapes."""
    return experiment.run(parse(SMALL | {"data": SHAPES}), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def features(run):
    """Features of each image by the run's encoder, one image at a time."""
    trained = build.reopen(run)
    encoder, images = trained.net.online.encoder.eval(), trained.scorer.images.images
    with torch.no_grad():
        rows = [encoder(torch.from_numpy(image[None]).float() / 255) for image in images]
    return torch.cat(rows).numpy(), trained.scorer.images.labels


@pytest.fixture
def fifth(features):
    """Features and labels of the train set, then of the held-out fifth."""
    rows, labels = features
    train, test = hold_out_fifth(EncodedImages(parse({"data": SHAPES}).data.load(), Extracted(rows, None)))
    return rows[train.rows], labels[train.rows], rows[test.rows], labels[test.rows]


def _brute_accuracy(labels, assigned, k):
    """Accuracy of the best of all k! assignments of labels to clusters."""
    counts = np.zeros((k, k), dtype=int)
    np.add.at(counts, (assigned, labels), 1)
    return max(counts[range(k), way].sum() for way in permutations(range(k))) / len(labels)


def test_clustering_is_the_best_matching_of_the_runs_own_assignments(run):
    rows = list(csv.DictReader(run.assignments_file.read_text().splitlines()))
    names = sorted({row["label"] for row in rows})
    labels = np.array([names.index(row["label"]) for row in rows])
    measured = protocols.evaluate(run, ["clustering"], seeds=3)["clustering"]
    assert list(measured) == ["acc", "nmi", "ari"]
    expected = _brute_accuracy(labels, np.array([int(row["cluster"]) for row in rows]), 7)
    assert measured["acc"] == {
        "mean": expected,
        "std": 0.0,
        "values": [expected],
        "split": "all",
        "images": 700,
    }


def test_kmeans_is_scikit_learns_on_the_unit_sphere_for_each_seed(run, features):
    rows, labels = features
    measured = protocols.evaluate(run, ["kmeans"], seeds=2)["kmeans"]["acc"]
    seeds = [derive(seed, "kmeans") % 2**32 for seed in range(2)]
    truth = [KMeans(7, n_init=20, random_state=seed).fit(normalize(rows)).labels_ for seed in seeds]
    assert measured["values"] == pytest.approx([_brute_accuracy(labels, some, 7) for some in truth], abs=0.01)
    assert measured["mean"] == pytest.approx(np.mean(measured["values"]))
    assert measured["std"] == pytest.approx(np.std(measured["values"], ddof=1))


def test_knn_is_scikit_learns_with_the_same_weights(run, fifth):
    train, labels, test, truth = fifth
    vote = KNeighborsClassifier(200, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.1))
    measured = protocols.evaluate(run, ["knn"])["knn"]["acc"]
    assert measured["mean"] == pytest.approx(vote.fit(train, labels).score(test, truth), abs=1.1 / 140)
    assert (measured["split"], measured["images"]) == ("held-out fifth", 140)


def test_linear_comes_close_to_logistic_regression(run, fifth):
    train, labels, test, truth = fifth
    scale = train.std()
    regression = LogisticRegression(max_iter=5000).fit(train / scale, labels)
    measured = protocols.evaluate(run, ["linear"], seeds=2)["linear"]["acc"]
    assert measured["mean"] == pytest.approx(regression.score(test / scale, truth), abs=0.06)
    assert len(measured["values"]) == 2


def test_features_are_computed_once_for_all_protocols_and_no_client_is_built(run, monkeypatch):
    extract, calls = Scorer.extract, []
    monkeypatch.setattr(Scorer, "extract", lambda self, net: calls.append(1) or extract(self, net))
    monkeypatch.setattr(build, "Client", None)
    names = ["clustering", "kmeans", "federated-kmeans", "knn", "linear", "semi"]
    monkeypatch.setattr(protocols.SemiSupervised, "accuracies", lambda *_: {"probe_1%": 0.5})
    measured = protocols.evaluate(run, names)
    assert len(calls) == 1
    assert list(measured) == names
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured


def test_protocols_are_deterministic_and_do_not_change_the_run(run):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    names = ["kmeans", "federated-kmeans", "linear"]
    assert protocols.evaluate(run, names) == protocols.evaluate(run, names)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_semi_has_a_score_for_each_variant_and_share(run):
    measured = protocols.evaluate(run, ["semi"])["semi"]
    assert list(measured) == ["probe_1%", "probe_10%", "finetune_1%", "finetune_10%"]
    assert all(0 <= score["mean"] <= 1 and score["images"] == 140 for score in measured.values())


def _blobs(n, seed, distance):
    labels = np.arange(n) % 5
    rows = distance * np.eye(5, 8)[labels] + np.random.default_rng(seed).normal(size=(n, 8))
    return rows.astype(np.float32), labels


@pytest.mark.parametrize("cluster", ["all at once", "by clients of one class"])
def test_separable_features_are_clustered_perfectly_and_random_ones_by_chance(cluster):
    for distance, low, high in ((20.0, 1.0, 1.0), (0.0, 0.2, 0.3)):
        rows, labels = _blobs(1000, 0, distance)
        if cluster == "all at once":
            assigned = kmeans(rows, 5, seed=1)
        else:
            assigned = federated_kmeans([rows[labels == label] for label in range(5)], rows, 5, seed=1)
        assert low <= _brute_accuracy(labels, assigned, 5) <= high


def _write_idx(path, array):
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.fixture
def mnist(tmp_path):
    """100 training and 40 test images of 2 classes, whose labels are swapped in the test split."""
    for prefix, count, shift in (("train", 100, 0), ("t10k", 40, 1)):
        labels = np.arange(count) % 2
        noise = np.random.default_rng(count).integers(0, 60, (count, 8, 8))
        bright = noise + 180 * ((labels + shift) % 2)[:, None, None]
        _write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", bright.astype(np.uint8))
        _write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", labels.astype(np.uint8))
    return {"name": "mnist", "root": str(tmp_path)}


def test_a_data_set_with_a_test_split_is_trained_on_train_and_scored_on_test(mnist, tmp_path):
    few = {"partition": {"clients": 2}, "clusters": 2, "evaluation": {"split": "test"}}
    run = experiment.run(parse(SMALL | few | {"data": mnist}), tmp_path / "run")
    measured = protocols.evaluate(run, ["kmeans", "federated-kmeans", "knn", "linear"])
    assert {score["split"] for scores in measured.values() for score in scores.values()} == {"test"}
    assert {score["images"] for scores in measured.values() for score in scores.values()} == {40}
    assert measured["knn"]["acc"]["mean"] < 0.1  # the test labels are swapped
    assert measured["linear"]["acc"]["mean"] < 0.1
    assert measured["kmeans"]["acc"]["mean"] == measured["federated-kmeans"]["acc"]["mean"] == 1.0


def test_without_labels_clustering_has_the_scores_that_need_none_and_others_are_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Scorer, "temperature", lambda *_: 3.0)  # so that calibration changes the confidence
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    data = {"name": "arrays", "root": str(tmp_path / "images.npy")}
    table = SMALL | {"data": data, "clusters": 3, "partition": {"clients": 1}}
    run = experiment.run(parse(table), tmp_path / "run")
    measured = protocols.evaluate(run, ["clustering"])["clustering"]
    assert set(measured) <= {"confidence", "balance", "uniformity", "silhouette"}
    table = csv.DictReader(run.assignments_file.read_text().splitlines())
    calibrated = np.mean([float(row["confidence"]) for row in table])
    assert measured["confidence"]["mean"] == pytest.approx(calibrated, abs=1e-4)
    with pytest.raises(
        InputError, match="have no labels, which knn, linear would need: use the protocol clustering"
    ):
        protocols.evaluate(run, ["clustering", "knn", "linear"])


def test_a_run_without_a_cluster_head_is_measured_by_its_features_alone(tmp_path):
    table = SMALL | {
        "data": SHAPES | {"samples": 140},
        "method": {"name": "fedsimclr", "rounds": 1, "hidden": 16},
        "clustering": {"name": "none"},
    }
    run = experiment.run(parse(table), tmp_path / "run")
    assert "acc" in protocols.evaluate(run, ["federated-kmeans"])["federated-kmeans"]
    with pytest.raises(InputError, match="has no cluster head: use the protocol kmeans"):
        protocols.evaluate(run, ["kmeans", "clustering"])


@pytest.mark.parametrize(
    ("names", "seeds", "sentence"),
    [
        (["liner"], 1, "Unknown protocol 'liner'. Did you mean 'linear'"),
        ([""], 1, "Unknown protocol ''"),
        (["knn"], 0, "give 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_read(names, seeds, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        protocols.evaluate(Run(tmp_path / "nowhere"), names, seeds)


def test_withheld_labels_are_those_of_images_that_no_client_has(tmp_path, monkeypatch):
    partition = SMALL["partition"] | {"withheld": 0.2}
    run = experiment.run(parse(SMALL | {"data": SHAPES, "partition": partition}), tmp_path / "run")
    used = []
    monkeypatch.setattr(
        protocols.SemiSupervised, "accuracies", lambda self, train, *_: used.append((self, train)) or {"x": 1}
    )
    protocols.evaluate(run, ["semi"])
    (semi, train_set), held = used[0], np.load(run.path / "partition.npz")
    assert semi.available == 0.2
    assert not np.isin(train_set.rows, np.concatenate([held[f"rows_{client}"] for client in range(3)])).any()
    assert len(train_set.rows) == pytest.approx(0.8 * 0.2 * 700, abs=15)  # a fifth of all is held out


def test_too_few_withheld_labels_are_refused(tmp_path):
    partition = SMALL["partition"] | {"withheld": 0.05}
    run = experiment.run(parse(SMALL | {"data": SHAPES, "partition": partition}), tmp_path / "run")
    with pytest.raises(InputError, match=r"withheld is 0\.05: the protocol semi needs 0\.1"):
        protocols.evaluate(run, ["semi"])
