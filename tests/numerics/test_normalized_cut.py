"""Normalised cuts of graphs with known parts."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.special import entr

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics import kmeans
from fedmcc.numerics.normalized_cut import Modularity, cost, cut


def test_densely_connected_blocks_are_recovered(block_graph):
    affinity, blocks = block_graph([7, 9, 8, 12])
    assert accuracy(blocks, cut(affinity, 4)) == 1.0


def test_components_are_never_cut(block_graph):
    affinity, _ = block_graph([5, 6, 7], between=0.0)
    components = connected_components(affinity)[1]
    assert accuracy(components, cut(affinity, 3)) == 1.0


def test_the_order_of_the_nodes_does_not_matter(block_graph):
    affinity, blocks = block_graph([7, 9, 8])
    order = np.random.default_rng(1).permutation(len(blocks))
    assert accuracy(cut(affinity, 3)[order], cut(affinity[np.ix_(order, order)], 3)) == 1.0


@pytest.mark.parametrize("balance", [0.0, 0.7])
def test_the_cost_is_the_mean_share_of_edges_that_leave_minus_the_entropy_of_the_sizes(block_graph, balance):
    affinity, _ = block_graph([3, 4], seed=3)
    assigned = np.array([0, 0, 1, 1, 1, 0, 1])
    shares, leaving = [], []
    for part in (0, 1):
        rows = [i for i in range(7) if assigned[i] == part]
        volume = sum(affinity[i, j] for i in rows for j in range(7))
        leaving.append(sum(affinity[i, j] for i in rows for j in range(7) if assigned[j] != part) / volume)
        shares.append(volume / affinity.sum())
    expected = sum(leaving) / 2 + balance * sum(share * np.log(share) for share in shares)
    assert cost(affinity, assigned, 2, balance) == pytest.approx(expected)


def test_of_two_cuts_of_the_same_weight_the_balanced_one_costs_less():
    affinity = np.ones((6, 6))
    even, uneven = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 1, 1])
    assert cost(affinity, even, 2, 1.0) < cost(affinity, uneven, 2, 1.0)
    assert cost(affinity, even, 2, 0.0) == pytest.approx(cost(affinity, uneven, 2, 0.0))


def test_the_cost_without_a_balance_is_the_negative_modularity(block_graph):
    affinity, _ = block_graph([3, 4], seed=3)
    assigned, total = np.array([0, 0, 1, 1, 1, 0, 1]), affinity.sum()
    degrees = [sum(row) for row in affinity]
    modularity = sum(
        (affinity[i, j] - degrees[i] * degrees[j] / total) / total
        for i in range(7)
        for j in range(7)
        if assigned[i] == assigned[j]
    )
    assert cost(affinity, assigned, 2, Modularity()) == pytest.approx(-modularity)


@pytest.mark.parametrize(("sizes", "balanced_is_right"), [([8, 8, 8], True), ([40, 4, 4], False)])
def test_a_split_block_and_two_merged_ones_cost_more_at_any_sizes(block_graph, sizes, balanced_is_right):
    affinity, blocks = block_graph(sizes, between=0.1)
    wrong = np.where(blocks == 0, np.arange(len(blocks)) % 2, 2)
    assert cost(affinity, blocks, 3, Modularity()) < cost(affinity, wrong, 3, Modularity())
    assert (cost(affinity, blocks, 3, 1.0) < cost(affinity, wrong, 3, 1.0)) == balanced_is_right


def test_nodes_without_edges_are_allowed(block_graph):
    affinity, blocks = block_graph([6, 6])
    alone = np.zeros((14, 14))
    alone[:12, :12] = affinity
    parts = cut(alone, 2)
    assert parts.shape == (14,)
    assert accuracy(blocks, parts[:12]) == 1.0


def test_as_many_parts_as_nodes_leave_each_node_alone():
    np.testing.assert_array_equal(cut(np.eye(3), 5), [0, 1, 2])


@pytest.mark.parametrize("clusters", [2, 5, 12])
def test_the_cut_is_the_one_of_separate_runs_of_k_means_and_sums_over_all_triples(block_graph, clusters):
    affinity, _ = block_graph([6] * clusters, between=0.3, seed=clusters)
    degrees = affinity.sum(axis=1)
    _, vectors = eigh(affinity / np.sqrt(np.outer(degrees, degrees)))
    rows = kmeans.unit_rows(vectors[:, -clusters:].astype(np.float32))
    candidates = [kmeans.fit(rows, clusters, seed, restarts=1).labels_ for seed in range(20)]
    costs = []
    for candidate in candidates:
        members = np.eye(clusters)[candidate]
        volumes = degrees @ members
        inside = np.einsum("ip,ij,jp->p", members, affinity, members)
        costs.append((1 - inside / volumes).mean() - entr(volumes / volumes.sum()).sum())
    np.testing.assert_array_equal(cut(affinity, clusters, 1.0), candidates[np.argmin(costs)])
