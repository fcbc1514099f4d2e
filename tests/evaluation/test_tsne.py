"""t-SNE separates what features separate, and a sample has images of every stratum."""

import numpy as np
import pytest

from fedmcc.evaluation.tsne import embed, stratified_sample, typicality


def blobs(each: int = 40, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Features of three distant groups on the sphere."""
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), each)
    return (np.eye(3, width)[groups] + 0.05 * draw.standard_normal((3 * each, width))).astype(
        np.float32
    ), groups


def test_groups_stay_separate() -> None:
    features, groups = blobs()
    points = embed(features, seed=0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(len(points))
    assert np.array_equal(groups[distances.argmin(axis=1)], groups)


def test_the_seed_decides() -> None:
    features, _ = blobs(each=10)
    assert np.array_equal(embed(features, seed=2**40), embed(features, seed=2**40))


@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (20, 8), (20, 1)])
def test_too_few_or_identical_images_are_all_at_the_origin(shape: tuple[int, int]) -> None:
    assert not embed(np.ones(shape, np.float32), seed=0).any()


@pytest.mark.parametrize("shape", [(4, 8), (9, 2)])
def test_few_images_have_finite_points(shape: tuple[int, int]) -> None:
    points = embed(np.random.default_rng(0).standard_normal(shape).astype(np.float32), seed=0)
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()


def test_a_sample_has_the_share_of_every_stratum() -> None:
    strata = np.repeat([0, 1, 2], [6000, 3000, 1000])
    rows = stratified_sample(strata, 100, seed=1)
    assert np.array_equal(rows, np.unique(rows))
    assert np.bincount(strata[rows]).tolist() == pytest.approx([60, 30, 10], abs=1)
    assert not np.array_equal(rows, stratified_sample(strata, 100, seed=2))
    assert np.array_equal(stratified_sample(strata[:50], 100, seed=1), np.arange(50))


def test_a_sample_leaves_out_no_stratum_however_small() -> None:
    strata = np.repeat([0, 1, 2, 3], [1, 19_997, 1, 1])
    rows = stratified_sample(strata, 40, seed=1)
    assert np.bincount(strata[rows]).tolist() == [1, 37, 1, 1]
    assert np.array_equal(rows, stratified_sample(strata, 40, seed=1))
    assert len(np.unique(stratified_sample(np.arange(50), 40, seed=1))) == 40


def test_the_centre_of_a_cluster_is_most_typical() -> None:
    features = np.array([[1, 0], [1, 0.1], [1, 1], [0, 2]], np.float32)
    cosines = typicality(features, np.array([0, 0, 0, 1]))
    assert cosines[:3].argmax() == 1
    assert cosines[:3].argmin() == 2
    assert cosines[3] == pytest.approx(1)
