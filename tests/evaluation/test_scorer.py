import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmcc.data import load_dataset
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation import scorer as scorer_module
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.options import Evaluation
from fedmcc.evaluation.scorer import Scorer
from fedmcc.networks.momentum import Branch
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics import kmeans
from fedmcc.views import Views, preset


class Pixels(nn.Module):
    """An encoder whose features are the pixels, so that the scores are known."""

    features = 64

    def forward(self, images):
        return images.flatten(1)


class Sides(nn.Module):
    """A head that separates images bright at the top from images bright at the bottom."""

    def __init__(self, clusters=2):
        super().__init__()
        self.clusters = clusters

    def forward(self, features):
        bottom = (features[:, 32:].mean(dim=1) > features[:, :32].mean(dim=1)).long()
        return nn.functional.one_hot(bottom, self.clusters).float() * 0.9 + 0.1 / self.clusters


def _scorer(labels="own", clusters=2, views=None, n=40):
    draw = np.random.default_rng(0)
    bottom = draw.integers(0, 2, n)
    bright = bottom[:, None, None, None] == (np.arange(8) >= 4)[:, None]
    pixels = (bright * 128 + draw.integers(0, 127, (n, 1, 8, 8))).astype(np.uint8)
    labels = bottom.astype(np.int64) if isinstance(labels, str) else labels
    return Scorer(
        ImageSet(pixels, labels, split="all"), views or Views(), clusters, 0, Evaluation(batch_size=7)
    )


def _accuracy(labels, assigned, k):
    """Accuracy of the best of all assignments of labels to clusters."""
    ways = itertools.permutations(range(k))
    return max(np.mean(np.array(way)[assigned] == labels) for way in ways)


def test_a_perfect_head_has_perfect_scores():
    row = _scorer().round(Branch(Pixels(), cluster_projector=Sides()), with_head=True, with_kmeans=True)
    for key in ("acc", "nmi", "ari", "kmeans_acc", "kmeans_nmi", "kmeans_ari"):
        assert row[key] == pytest.approx(1.0)
    assert row["confidence"] == pytest.approx(0.95)


def test_accuracy_is_that_of_the_best_matching():
    labels = np.random.default_rng(1).integers(0, 2, 40)
    scorer, branch = _scorer(labels), Branch(Pixels(), cluster_projector=Sides())
    assigned = scorer.assign(scorer.extract(branch)).clusters
    assert scorer.round(branch, with_head=True, with_kmeans=False)["acc"] == pytest.approx(
        _accuracy(labels, assigned, 2)
    )


@pytest.mark.parametrize("labels", [None, np.full(40, -1)])
def test_without_labels_a_row_has_the_scores_that_need_none(labels):
    row = _scorer(labels).round(Branch(Pixels(), cluster_projector=Sides()), with_head=True, with_kmeans=True)
    assert set(row) == {"confidence", "balance", "alignment", "uniformity", "silhouette"}


def test_without_a_head_a_row_has_k_means_alone_and_no_empty_values():
    row = _scorer().round(Branch(Pixels()), with_head=True, with_kmeans=True)
    assert set(row) == {"alignment", "uniformity", "kmeans_acc", "kmeans_nmi", "kmeans_ari"}
    assert all(isinstance(value, float) for value in row.values())


def test_without_augmentation_two_views_are_aligned():
    branch = Branch(Pixels(), cluster_projector=Sides())
    assert _scorer().round(branch, with_head=True, with_kmeans=False)["alignment"] == 0.0
    assert (
        _scorer(views=preset("digits")).round(branch, with_head=True, with_kmeans=False)["alignment"] > 0.01
    )


def test_scoring_twice_gives_the_same_scores():
    scorer, branch = _scorer(views=preset("digits")), Branch(Pixels(), cluster_projector=Sides())
    assert scorer.round(branch, with_head=True, with_kmeans=True) == scorer.round(
        branch, with_head=True, with_kmeans=True
    )


def test_scoring_does_not_change_the_branch_or_its_modes():
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5))
    branch = Branch(encoder, cluster_projector=Sides())
    encoder.train()
    encoder[1].eval()
    before = {name: value.clone() for name, value in branch.state_dict().items()}
    _scorer().round(branch, with_head=True, with_kmeans=False)
    assert [module.training for module in encoder] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in branch.state_dict().items())


def test_final_scores_are_of_pixels_features_and_head():
    scorer, branch = _scorer(), Branch(Pixels(), cluster_projector=Sides())
    final = scorer.final(branch, scorer.extract(branch))
    assert set(final["scores"]) == {"pixels", "features", "head"}
    assert all(set(scores) == {"acc", "nmi", "ari"} for scores in final["scores"].values())
    assert (final["images"], final["split"], final["clusters"]) == (40, "all", 2)
    assert sorted(final["sizes"]) == sorted(np.bincount(scorer.images.labels).tolist())
    assert final["knn"] == 1.0  # 39 neighbours, but those of the same side are far nearer
    assert final["warning"] is None


class Corners(Prototypes):
    """Two prototypes, a bright top and a bright bottom, each of one cluster, and soft assignments."""

    def __init__(self):
        super().__init__(features=64, clusters=2, count=2, axes=64, temperature=1.0)
        top = (torch.arange(64) < 32).float()
        self.vectors.weight.data = torch.stack([top, 1 - top])


def test_a_head_is_scored_with_unknown_owner_at_clients_and_for_images_of_none():
    scorer, branch = _scorer(), Branch(Pixels(), cluster_projector=Corners())
    labels = scorer.images.labels.copy()
    scorer.images.labels[:5] = 1 - labels[:5]  # mistakes, all of them in images of no client
    owners = np.where(np.arange(40) < 10, -1, labels)
    scores = replace(scorer, owners=owners).final(branch, scorer.extract(branch))["scores"]
    assert scores["head"]["acc"] == scores["own"]["acc"] == 1.0
    assert scores["further"]["acc"] == 0.5


def test_a_client_that_shows_one_cluster_alone_gets_it_for_doubtful_images():
    """P(c | j, owner) is proportional to P(c | j) π(c) / P(c), π = 0.95 of its mixture + 0.05 P."""
    scorer, head = _scorer(), Corners()
    head.temperature, head.groups = 0.5, torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    scorer.images.images[:, 0] = np.repeat(np.uint8([200, 0]), 32).reshape(8, 8)
    scorer.images.images[0, 0] = 100  # as near to the one prototype as to the other
    branch = Branch(Pixels(), cluster_projector=head)
    unknown = scorer.extract(branch).assignments
    known = replace(scorer, owners=np.zeros(40, int)).extract(branch).assignments
    joint = head.groups.numpy() * (0.95 * unknown.mean(axis=0) + 0.05 * 0.5)
    expected = [0.5, 0.5] @ (joint / joint.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(known[0], expected, rtol=1e-5)
    assert (unknown[0].argmax(), known[0].argmax()) == (1, 0)


def test_without_a_head_of_prototypes_clients_have_no_scores_of_their_own():
    scorer, branch = _scorer(), Branch(Pixels(), cluster_projector=Sides())
    scorer = replace(scorer, owners=np.arange(40) % 2)
    assert set(scorer.final(branch, scorer.extract(branch))["scores"]) == {"pixels", "features", "head"}


def test_final_scores_without_labels_are_empty_and_without_a_head_k_means_assigns():
    scorer, branch = _scorer(labels=None), Branch(Pixels())
    extracted = scorer.extract(branch)
    final = scorer.final(branch, extracted)
    assert final["scores"] == {"pixels": {}, "features": {}}
    assert final["knn"] is None
    assigned = scorer.assign(extracted)
    assert assigned.confidence is None
    assert final["sizes"] == np.bincount(assigned.clusters, minlength=2).tolist()


def test_a_collapsed_head_is_warned_about():
    scorer, branch = _scorer(clusters=10), Branch(Pixels(), cluster_projector=Sides(10))
    final = scorer.final(branch, scorer.extract(branch))
    assert "The clustering has collapsed" in final["warning"]
    assert sum(final["sizes"]) == 40
    assert len(final["sizes"]) == 10


def test_raw_k_means_on_digits_is_the_known_baseline():
    images = load_dataset("digits")
    scorer = Scorer(images, Views(), 10, 0, Evaluation())
    branch = Branch(Pixels())
    assert scorer.final(branch, scorer.extract(branch))["scores"]["pixels"]["acc"] == pytest.approx(
        0.79, abs=0.04
    )


@pytest.mark.parametrize("options", [{"every": 0}, {"kmeans_every": -1}, {"batch_size": 0}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Evaluation(**options)


def test_a_head_that_nothing_has_trained_is_not_scored():
    row = _scorer().round(Branch(Pixels(), cluster_projector=Sides()), with_head=False, with_kmeans=True)
    assert not {"acc", "confidence", "balance", "silhouette"} & set(row)
    assert "kmeans_acc" in row


class Counting(nn.Module):
    """An encoder with a weight, which counts its input images."""

    features = 64

    def __init__(self):
        super().__init__()
        self.weight, self.count = nn.Parameter(torch.ones(64)), 0

    def forward(self, images):
        self.count += len(images)
        return images.flatten(1) * self.weight


def test_an_unchanged_encoder_encodes_the_images_once(monkeypatch):
    fits, scorer, branch = [], _scorer(), Branch(Counting())
    real = scorer_module.kmeans
    monkeypatch.setattr(scorer_module, "kmeans", lambda *args: fits.append(1) or real(*args))
    first = scorer.round(branch, with_head=False, with_kmeans=True)
    extracted = scorer.extract(branch)
    assigned = scorer.assign(extracted, branch).clusters
    final = scorer.final(branch, extracted)
    assert (branch.encoder.count, len(fits)) == (3 * 40, 1)  # all images, and two views of each
    assert final["scores"]["features"]["acc"] == first["kmeans_acc"]
    assert np.array_equal(assigned, real(extracted.features, 2, 0))


def test_a_changed_encoder_encodes_again_and_a_new_head_uses_cached_features():
    scorer, branch = _scorer(), Branch(Counting(), cluster_projector=Sides())
    first = scorer.extract(branch)
    branch.cluster_projector = nn.Sequential(Sides(), nn.Softmax(dim=1))
    second = scorer.extract(branch)
    assert second.features is first.features
    assert not np.array_equal(second.assignments, first.assignments)
    with torch.no_grad():
        branch.encoder.weight.mul_(2)
    np.testing.assert_allclose(scorer.extract(branch).features, 2 * first.features)
    assert branch.encoder.count == 2 * 40


def test_a_large_set_is_scored_on_samples_whose_sizes_are_stated(monkeypatch):
    monkeypatch.setattr(scorer_module, "KNN_QUERIES", 10)
    scorer, branch = _scorer(n=60), Branch(Pixels(), cluster_projector=Sides())
    scorer = replace(scorer, options=Evaluation(sample_above=30))
    final = scorer.final(branch, scorer.extract(branch))
    assert final["sampled"] == {"knn": 10, "pixels": 30}
    assert final["scores"]["pixels"]["acc"] == final["knn"] == 1.0
    assert sum(final["sizes"]) == 60


@pytest.mark.parametrize("above", [0, 60, 10_000])
def test_sets_up_to_the_limit_are_scored_on_all_images_and_0_is_no_limit(above, monkeypatch):
    monkeypatch.setattr(scorer_module, "KNN_QUERIES", 10)
    scorer, branch = _scorer(n=60), Branch(Pixels(), cluster_projector=Sides())
    scorer = replace(scorer, options=Evaluation(sample_above=above))
    extracted = scorer.extract(branch)
    final = scorer.final(branch, extracted)
    assert "sampled" not in final
    assert final["knn"] == WeightedKNN().leave_one_out(extracted.features, scorer.images.labels)
    pixels = kmeans.fit(scorer.images.images.reshape(60, -1).astype(np.float32) / 255, 2, seed=0).labels_
    assert final["scores"]["pixels"]["acc"] == _accuracy(scorer.images.labels, pixels, 2)


def test_a_negative_limit_of_images_is_refused():
    with pytest.raises(InputError, match="sample_above is -1"):
        Evaluation(sample_above=-1)


def test_without_labels_no_clustering_is_computed_for_scores_against_them(monkeypatch):
    for name in ("raw_kmeans", "kmeans", "score"):
        monkeypatch.setattr(scorer_module, name, lambda *_, **__: pytest.fail("computed"))
    scorer, branch = _scorer(labels=None), Branch(Pixels(), cluster_projector=Sides())
    scorer.round(branch, with_head=True, with_kmeans=True)
    assert scorer.final(branch, scorer.extract(branch))["scores"] == {
        "pixels": {},
        "features": {},
        "head": {},
    }
