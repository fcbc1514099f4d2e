"""k-means and the merging of small clusters."""

import numpy as np
import pytest

from fedmcc.numerics import kmeans

ROWS = np.concatenate(
    [np.random.default_rng(0).normal(place, 0.1, (n, 2)) for place, n in ((0, 40), (5, 30), (9, 2))]
)


def test_no_cluster_is_smaller_than_the_minimum():
    centres, labels = kmeans.merge_small_clusters(ROWS, kmeans.fit(ROWS, 8, seed=0), min_size=10)
    sizes = np.bincount(labels)
    assert sizes.min() >= 10
    assert sizes.sum() == len(ROWS)
    np.testing.assert_allclose(sizes @ centres, ROWS.sum(axis=0))  # each centre is the mean of its rows


def test_rows_of_small_clusters_join_the_nearest_centre():
    centres, labels = kmeans.merge_small_clusters(ROWS, kmeans.fit(ROWS, 3, seed=0), min_size=3)
    sizes = np.bincount(labels)
    assert sorted(sizes.tolist()) == [32, 40]
    assert np.abs(centres[sizes.argmin()] - ROWS[40:].mean(axis=0)).max() < 1e-9


@pytest.mark.parametrize(("min_size", "count"), [(1, 8), (1000, 1)])
def test_a_minimum_of_one_keeps_all_centres_and_one_always_remains(min_size, count):
    model = kmeans.fit(ROWS, 8, seed=0)
    centres, labels = kmeans.merge_small_clusters(ROWS, model, min_size)
    assert len(centres) == labels.max() + 1 == count
    assert min_size > 1 or np.array_equal(centres, model.cluster_centers_)


@pytest.mark.parametrize(("rows", "clusters"), [(30, 4), (200, 20), (500, 60)])
def test_runs_that_share_their_distances_are_those_of_scikit_learn(rows, clusters):
    draw = np.random.default_rng(clusters)
    points = kmeans.unit_rows(draw.normal(size=(rows, 8)).astype(np.float32))
    seeds = range(2**32 - 3, 2**32 + 4)  # also beyond the range that scikit-learn takes
    expected = [kmeans.fit(points, clusters, seed, restarts=1).labels_ for seed in seeds]
    found = [model.labels_ for model in kmeans.fit_each(points, clusters, seeds)]
    np.testing.assert_array_equal(found, expected)


def test_equal_rows_leave_clusters_empty_without_an_error():
    (model,) = kmeans.fit_each(np.ones((5, 2), dtype=np.float32), 3, [0])
    assert len(np.unique(model.labels_)) == 1


def test_many_weighted_rows_are_clustered_by_restarts_on_a_sample(monkeypatch):
    monkeypatch.setattr(kmeans, "MAX_RESTART_ROWS", 50)
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 3, 400)
    rows, weights = np.eye(3)[blocks] * 5 + draw.normal(0, 0.1, (400, 3)), draw.uniform(1, 9, 400)
    model = kmeans.fit(rows, 3, seed=0, weights=weights)
    for cluster in range(3):
        own = model.labels_ == cluster
        assert len(set(blocks[own])) == 1
        np.testing.assert_allclose(
            model.cluster_centers_[cluster], np.average(rows[own], axis=0, weights=weights[own])
        )


def test_many_clusters_of_weighted_rows_have_fewer_restarts(monkeypatch):
    restarts = []

    def fit(rows, clusters, seed, weights, count):
        restarts.append(count)
        return original(rows, clusters, seed, weights, count)

    original = kmeans.fit
    monkeypatch.setattr(kmeans, "fit", fit)
    monkeypatch.setattr(kmeans, "MAX_RESTART_CENTRES", 12)
    for clusters in (2, 4, 20):
        kmeans.fit_weighted(ROWS, clusters, 0, np.ones(len(ROWS)))
    assert restarts == [6, 3, 1]


def test_more_centres_than_one_fit_allows_are_found_within_parts(monkeypatch):
    draw = np.random.default_rng(0)
    points = draw.uniform(0, 100, (30, 2))
    truth = np.repeat(np.arange(30), 20)
    rows, weights = points[truth] + draw.normal(0, 0.01, (600, 2)), draw.uniform(1, 9, 600)
    whole = kmeans.fit(rows, 30, 0, weights).inertia_
    monkeypatch.setattr(kmeans, "MAX_CENTRES", 9)
    centres, labels = kmeans.fit_weighted(rows, 60, 0, weights)
    assert centres.shape == (60, 2)
    np.testing.assert_array_equal(np.unique(labels), np.arange(60))
    for cluster, centre in enumerate(centres):
        own = labels == cluster
        mean = np.average(rows[own], axis=0, weights=weights[own])
        np.testing.assert_allclose(centre, mean, atol=0.01)  # k-means stops at a tolerance
    inertia = (weights * np.square(rows - centres[labels]).sum(axis=1)).sum()
    assert inertia <= whole  # twice as many centres as points


@pytest.mark.parametrize(
    ("count", "sizes", "shares"),
    [(10, [50, 30, 20], [5, 3, 2]), (4, [97, 1, 1, 0], [2, 1, 1, 0]), (8, [6, 1, 1], [6, 1, 1])],
)
def test_a_number_is_divided_in_proportion_to_sizes(count, sizes, shares):
    assert kmeans.allot(count, np.array(sizes)) == shares


def test_more_centres_than_fit_at_once_of_equal_rows_end():
    rows = np.ones((600, 3), dtype=np.float32)
    found = kmeans.fit_weighted(rows, 571, 0, np.ones(600, dtype=np.float32))
    assert found.centres.shape == (571, 3)
    assert (found.centres == 1).all()
