"""k-means centres."""

import numpy as np
import pytest

from fedmcc.numerics import kmeans

ROWS = np.concatenate(
    [np.random.default_rng(0).normal(place, 0.1, (n, 2)) for place, n in ((0, 40), (5, 30), (9, 2))]
)


def test_no_centre_stands_for_fewer_rows_than_it_must():
    found, sizes = kmeans.merge_small_clusters(ROWS, kmeans.fit(ROWS, 8, seed=0), smallest=10)
    assert sizes.min() >= 10
    assert sizes.sum() == len(ROWS)
    np.testing.assert_allclose(sizes @ found, ROWS.sum(axis=0))  # each is the mean of its rows


def test_lone_rows_join_the_nearest_centre():
    found, sizes = kmeans.merge_small_clusters(ROWS, kmeans.fit(ROWS, 3, seed=0), smallest=3)
    assert sorted(sizes.tolist()) == [32, 40]
    assert np.abs(found[sizes.argmin()] - ROWS[40:].mean(axis=0)).max() < 1e-9


@pytest.mark.parametrize(("smallest", "count"), [(1, 8), (1000, 1)])
def test_without_a_limit_all_centres_stay_and_one_always_does(smallest, count):
    model = kmeans.fit(ROWS, 8, seed=0)
    found, sizes = kmeans.merge_small_clusters(ROWS, model, smallest)
    assert len(found) == len(sizes) == count
    assert smallest > 1 or np.array_equal(found, model.cluster_centers_)
