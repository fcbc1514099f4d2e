import numpy as np
import pytest
import torch

from fedmcc.numerics.agglomeration import Merging, cross_sums, first_clusters, means, merge, neighbour_graph


def _rows(n=24, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _labels(n=24, clusters=6):
    return np.arange(n) % clusters


def _dense(rows, count):
    """The weights of the graph by a double loop."""
    x = rows.numpy()
    distances = np.square(x[:, None] - x[None]).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1)[:, :count]
    variance = np.mean([distances[i, j] for i in range(len(x)) for j in near[i]])
    weights = np.zeros_like(distances)
    for i in range(len(x)):
        for j in near[i]:
            weights[i, j] = np.exp(-distances[i, j] / variance)
    return weights


def test_the_graph_is_that_of_a_double_loop():
    np.testing.assert_allclose(neighbour_graph(_rows(), 5).toarray(), _dense(_rows(), 5), rtol=1e-9)


def test_affinities_are_those_of_a_triple_loop():
    weights, labels = _dense(_rows(), 8), _labels()
    found = Merging(neighbour_graph(_rows(), 8), labels, rivals=5).affinities
    for i in range(6):
        for j in range(6):
            if i == j:
                continue
            sums = 0.0
            for a, b in ((i, j), (j, i)):
                to, back = weights[labels == a][:, labels == b], weights[labels == b][:, labels == a]
                sums += (to @ back).sum() / (labels == a).sum() ** 2
            assert found[i, j] == pytest.approx(sums)


def test_a_merge_is_exact_but_for_the_products_between_its_two_clusters():
    graph, labels = neighbour_graph(_rows(), 8), _labels()
    merging = Merging(graph, labels, rivals=5)
    merging.join(1, 4)
    exact = cross_sums(graph, np.where(labels == 4, 1, labels))
    weights, left = graph.toarray(), [0, 2, 3, 5]
    np.testing.assert_allclose(merging.sums[1, left], exact[1, left])
    for j in left:
        rows = weights[labels == j]
        columns = weights[:, labels == j].T
        cross = sum(
            rows[:, labels == a].sum(axis=1) @ columns[:, labels == b].sum(axis=1)
            for a, b in ((1, 4), (4, 1))
        )
        assert exact[j, 1] - merging.sums[j, 1] == pytest.approx(cross)


@pytest.mark.parametrize("clusters", [120, 20])
def test_the_nearest_clusters_stay_those_of_the_whole_matrix(clusters):
    rows = _rows(300)
    merging = Merging(neighbour_graph(rows, 10), np.arange(300) // 2, rivals=5)
    while merging.count > clusters:
        before = merging.affinities
        nearest = np.sort(before, axis=1)[:, ::-1][:, :5]
        alive = merging.owner == np.arange(150)
        np.testing.assert_array_equal(merging.nearest[alive][:, 0], nearest[alive][:, 0])
        if merging.count > 100:
            np.testing.assert_array_equal(merging.nearest[alive], nearest[alive])
        merging.join(*merging.best_pair())


def test_blobs_are_found_from_their_nearest_pairs():
    draw, truth = np.random.default_rng(0), np.arange(90) % 3
    rows = torch.from_numpy(draw.normal(size=(90, 4)) + 12 * np.eye(4)[truth])
    first = first_clusters(rows)
    assert 3 <= first.max() + 1 < 45
    labels = merge(neighbour_graph(rows, 10), first, 3, rivals=5)
    assert sorted(set(zip(labels.tolist(), truth.tolist(), strict=True))) == sorted(
        {(int(labels[blob]), blob) for blob in range(3)}
    )
    assert set(labels) == {0, 1, 2}


def test_first_clusters_join_each_row_to_its_nearest():
    rows = torch.tensor([[0.0], [1.0], [1.9], [10.0], [10.5], [30.0]])
    labels = first_clusters(rows)
    assert labels[0] == labels[1] == labels[2]
    assert labels[3] == labels[4] == labels[5]  # the nearest row of a lonely one is far away
    assert labels[0] != labels[3]
    assert first_clusters(rows[:1]).tolist() == [0]


def test_means_of_small_clusters_join_the_nearest():
    rows = np.array([[0.0], [2.0], [4.0], [20.0], [22.0]])
    labels = np.array([0, 0, 1, 2, 2])
    found, joined = means(rows, labels, smallest=1)
    assert (found.ravel().tolist(), joined.tolist()) == ([1.0, 4.0, 21.0], [0, 0, 1, 2, 2])
    found, joined = means(rows, labels, smallest=2)
    assert (found.ravel().tolist(), joined.tolist()) == ([2.0, 21.0], [0, 0, 0, 1, 1])
