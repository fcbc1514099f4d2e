from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted, extract
from fedmcc.evaluation.label_free import (
    LabelFreeScores,
    alignment,
    collapse_warning,
    confidence,
    score_without_labels,
    silhouette,
    uniformity,
)
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.heads import cluster_projector
from fedmcc.networks.momentum import Branch
from fedmcc.training.loop import DivergedError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)


def scale(images: Tensor) -> Tensor:
    return images.float() / 255


def branch(clusters: int | None = 4) -> Branch:
    encoder = ConvNetOptions(width=2).build(1, 8)
    return Branch(encoder, None, None if clusters is None else cluster_projector(16, 8, clusters))


def unit(rows: np.ndarray) -> list[np.ndarray]:
    return [row / np.sqrt((row.astype(np.float64) ** 2).sum()) for row in rows]


def rows(count: int, dimensions: int = 5, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)


def naive_silhouette(points: list[np.ndarray], assigned: np.ndarray) -> float:
    scores = []
    for i, point in enumerate(points):
        distances: dict[int, list[float]] = {}
        for j, other in enumerate(points):
            if j != i:
                distances.setdefault(int(assigned[j]), []).append(float(np.linalg.norm(point - other)))
        own = np.mean(distances.pop(int(assigned[i])))
        nearest = min(np.mean(others) for others in distances.values())
        scores.append((nearest - own) / max(own, nearest))
    return float(np.mean(scores))


def test_extraction_equals_the_modules_run_image_by_image() -> None:
    network = branch().eval()
    extracted = extract(network, IMAGES, scale, batch_size=7)
    for image, features, assignments in zip(IMAGES, extracted.features, extracted.assignments, strict=True):
        expected = network.encoder(torch.tensor(image[None] / 255, dtype=torch.float32))
        np.testing.assert_allclose(features, expected[0].detach(), atol=1e-5)
        np.testing.assert_allclose(assignments, network.cluster_projector(expected)[0].detach(), atol=1e-5)


def test_extraction_leaves_modes_statistics_and_gradients_as_they_were() -> None:
    network = branch().train()
    network.encoder.stages[0].eval()
    modes = [module.training for module in network.modules()]
    before = {key: value.clone() for key, value in network.state_dict().items()}
    extract(network, IMAGES, scale)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_extraction_restores_modes_after_an_error() -> None:
    network = branch().train()
    with pytest.raises(RuntimeError):
        extract(network, IMAGES[:, :, :4], scale)
    assert all(module.training for module in network.modules())


def test_extraction_is_the_same_in_train_and_eval_mode() -> None:
    network = branch()
    first = extract(network.train(), IMAGES, scale)
    assert np.array_equal(first.features, extract(network.eval(), IMAGES, scale).features)


def test_extraction_reads_images_mapped_from_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    network = branch()
    extracted = extract(network, mapped, scale)
    assert np.array_equal(extracted.features, extract(network, IMAGES, scale).features)
    assert extracted.features.dtype == extracted.assignments.dtype == np.float32


def test_extraction_without_cluster_projector_has_no_assignments() -> None:
    assert extract(branch(clusters=None), IMAGES, scale).assignments is None


def test_extraction_without_images_is_refused() -> None:
    with pytest.raises(InputError, match="no images to evaluate"):
        extract(branch(), IMAGES[:0], scale)


def test_diverged_features_raise_an_error() -> None:
    network = branch()
    nn.init.constant_(network.encoder.stages[-1][1].bias, torch.nan)
    with pytest.raises(DivergedError, match="training has diverged"):
        extract(network, IMAGES, scale)


def test_confidence_is_the_mean_of_the_largest_share() -> None:
    shares = np.array([[1, 0], [0.5, 0.5], [0.25, 0.75]], dtype=np.float32)
    assert confidence(shares) == pytest.approx((1 + 0.5 + 0.75) / 3)


def test_alignment_equals_a_loop_over_images() -> None:
    first, second = rows(9), rows(9, seed=2)
    pairs = zip(unit(first), unit(second), strict=True)
    assert alignment(first, second) == pytest.approx(np.mean([((a - b) ** 2).sum() for a, b in pairs]))
    assert alignment(first, 3 * first) == pytest.approx(0, abs=1e-12)


def test_uniformity_equals_a_loop_over_pairs() -> None:
    points = unit(rows(12))
    pairs = [np.exp(-2 * ((a - b) ** 2).sum()) for i, a in enumerate(points) for b in points[:i]]
    assert uniformity(rows(12), seed=0) == pytest.approx(np.log(np.mean(pairs)))


def test_uniformity_is_zero_at_collapse_and_undefined_for_one_image() -> None:
    assert uniformity(np.ones((5, 3), dtype=np.float32), seed=0) == pytest.approx(0, abs=1e-12)
    assert uniformity(rows(1), seed=0) is None


def test_silhouette_equals_a_loop_over_images() -> None:
    assigned = np.arange(20) % 3
    assert silhouette(rows(20), assigned, seed=0) == pytest.approx(naive_silhouette(unit(rows(20)), assigned))


@pytest.mark.parametrize("assigned", [[0] * 6, [0, 1, 2, 3, 4, 5]])
def test_silhouette_is_undefined_for_one_cluster_or_only_single_images(assigned: list[int]) -> None:
    assert silhouette(rows(6), np.array(assigned), seed=0) is None


def test_sampled_scores_repeat_and_come_near_the_full_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    features, assigned = rows(1500), np.arange(1500) % 3
    full = uniformity(features, seed=0), silhouette(features, assigned, seed=0)
    monkeypatch.setattr("fedmcc.evaluation.label_free.MAX_COMPARED_IMAGES", 500)
    sampled = uniformity(features, seed=0), silhouette(features, assigned, seed=0)
    assert sampled == (uniformity(features, seed=0), silhouette(features, assigned, seed=0))
    assert sampled != full
    assert sampled == pytest.approx(full, abs=0.05)


def test_all_scores_of_a_perfect_clustering() -> None:
    features = np.eye(4, dtype=np.float32)[np.arange(20) % 4]
    scores = score_without_labels(Extracted(features, features), seed=0, views=(features, features))
    assert scores[:3] == pytest.approx((1, 1, 0))
    assert scores.silhouette == pytest.approx(1)


def test_scores_without_assignments_or_views_are_those_of_the_features() -> None:
    scores = score_without_labels(Extracted(rows(6), None), seed=0)
    assert scores == LabelFreeScores(None, None, None, uniformity(rows(6), seed=0), None)


def test_one_image_has_scores() -> None:
    scores = score_without_labels(Extracted(rows(1), np.ones((1, 3), dtype=np.float32) / 3), seed=0)
    assert scores == LabelFreeScores(pytest.approx(1 / 3), 0, None, None, None)


@pytest.mark.parametrize(
    ("assigned", "clusters"), [([0] * 20, 10), ([0] * 20, 2), ([3] * 16 + [1] * 4, 6), ([0, 1] * 10, 5)]
)
def test_uneven_clusters_get_a_warning_with_a_remedy(assigned: list[int], clusters: int) -> None:
    sentence = collapse_warning(rows(20), np.array(assigned), clusters, remedy="Do this.")
    assert sentence is not None
    assert sentence.endswith(f"{clusters - len(set(assigned))} are empty. Do this.")


def test_the_effective_number_of_clusters_is_that_of_equal_ones() -> None:
    assert "2.0 of 10 clusters are effectively used" in str(collapse_warning(rows(20), np.arange(20) % 2, 10))


@pytest.mark.parametrize(
    ("assigned", "clusters"), [([0, 1, 2, 3] * 5, 4), ([0] * 20, 1), ([0] * 14 + [1] * 6, 2), ([7], 10)]
)
def test_clusters_in_use_are_not_called_collapsed(assigned: list[int], clusters: int) -> None:
    assert collapse_warning(rows(len(assigned)), np.array(assigned), clusters) is None


def test_features_that_are_all_alike_get_a_warning() -> None:
    features = np.ones((20, 5), dtype=np.float32) + 0.01 * rows(20)
    assert "features have collapsed" in str(collapse_warning(features, np.arange(20) % 4, 4))


def test_clusters_that_the_user_merged_are_not_missing():
    assigned = np.array([0, 1, 4] * 7)
    assert collapse_warning(rows(21), assigned, 7, merged=3) is None  # three of four are used
    assert "1.0 of 4 clusters are effectively used, 3 are empty" in str(
        collapse_warning(rows(21), np.zeros(21, dtype=np.int64), 7, merged=3)
    )
