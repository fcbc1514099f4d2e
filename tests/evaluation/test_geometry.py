import numpy as np
import pytest

from fedmcc.evaluation.assignments import Assignment, fold, second_choice
from fedmcc.evaluation.geometry import Geometry, conformal_limit, fit_geometry, mean_features


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def _two_groups(draw, count):
    """Points around two orthogonal directions."""
    clusters = np.arange(count) % 2
    rows = np.eye(2, 6, dtype=np.float32)[clusters] + draw.normal(scale=0.1, size=(count, 6))
    return rows.astype(np.float32), clusters


def test_the_limit_is_exceeded_as_often_as_stated(draw):
    """Over many draws, new scores exceed the limit with at most the stated probability, and not much less."""
    alarms = [
        (draw.random(200) > conformal_limit(draw.random(99).astype(np.float32), 0.1)).mean()
        for _ in range(400)
    ]
    assert 0.08 < np.mean(alarms) < 0.105


def test_few_images_give_no_alarm():
    assert conformal_limit(np.arange(98, dtype=np.float32), 0.01) == np.inf
    assert conformal_limit(np.arange(99, dtype=np.float32), 0.01) == 98


def test_new_images_of_the_groups_are_typical_and_others_are_outliers(draw):
    geometry = fit_geometry(*_two_groups(draw, 1000), count=3)
    rows, clusters = _two_groups(draw, 2000)
    _, scaled = geometry.distances(rows, clusters, {})
    assert (scaled > geometry.limit).mean() < 0.02
    strange = np.eye(6, dtype=np.float32)[[4, 5]]
    _, scaled = geometry.distances(strange, np.array([0, 1]), {})
    assert (scaled > geometry.limit).all()


def test_the_distance_is_one_minus_the_cosine_to_the_centre():
    rows = np.array([[3, 4], [4, 3], [0, 1]], dtype=np.float32)
    geometry = Geometry(np.eye(2, dtype=np.float32), np.ones(2, dtype=np.float32), np.inf)
    distance, _ = geometry.distances(rows, np.array([0, 0, 1]), {})
    np.testing.assert_allclose(distance, [1 - 0.6, 1 - 0.8, 0], atol=1e-6)


def test_an_image_of_a_merged_cluster_is_near_one_of_its_parts():
    rows = np.eye(2, dtype=np.float32)
    geometry = Geometry(rows, np.ones(2, dtype=np.float32), np.inf)
    distance, _ = geometry.distances(rows, np.array([0, 0]), {1: 0})
    np.testing.assert_allclose(distance, [0, 0], atol=1e-6)


def test_merged_columns_are_added_and_rows_still_sum_to_one(draw):
    soft = draw.dirichlet(np.ones(4), size=30).astype(np.float32)
    folded = fold(soft, {3: 1})
    np.testing.assert_array_equal(folded[:, 3], 0)
    np.testing.assert_allclose(folded.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(folded[:, 1], soft[:, 1] + soft[:, 3])
    np.testing.assert_array_equal(fold(folded, {3: 1}), folded)


def test_the_second_choice_is_the_second_of_the_sorted_assignments(draw):
    soft = draw.dirichlet(np.ones(5), size=50).astype(np.float32)
    np.testing.assert_array_equal(second_choice(soft), np.argsort(-soft, axis=1)[:, 1])
    assert (second_choice(soft) != Assignment.from_soft(soft).clusters).all()


def test_means_are_those_of_each_cluster(draw):
    rows, clusters = draw.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 3
    means = mean_features(rows, clusters, 4)
    for cluster in range(3):
        np.testing.assert_allclose(means[cluster], rows[clusters == cluster].mean(axis=0), rtol=1e-5)
    assert (means[3] == 0).all()
