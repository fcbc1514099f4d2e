"""Normalised cuts of graphs with known parts."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components
from scipy.special import entr

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics import kmeans, normalized_cut
from fedmcc.numerics.normalized_cut import consensus, cost, cut, move_nodes


def _graph(sizes, inside=1.0, between=0.01, seed=0):
    """A noisy symmetric graph of blocks, and the block of every node."""
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    means = np.where(blocks[:, None] == blocks, inside, between)
    noise = np.random.default_rng(seed).uniform(0.5, 1.5, means.shape)
    return means * (noise + noise.T) / 2, blocks


def test_densely_connected_blocks_are_recovered():
    affinity, blocks = _graph([7, 9, 8, 12])
    assert accuracy(blocks, cut(affinity, 4)) == 1.0


def test_components_are_never_cut():
    affinity, _ = _graph([5, 6, 7], between=0.0)
    components = connected_components(affinity)[1]
    assert accuracy(components, cut(affinity, 3)) == 1.0


def test_the_order_of_the_nodes_does_not_matter():
    affinity, blocks = _graph([7, 9, 8])
    order = np.random.default_rng(1).permutation(len(blocks))
    assert accuracy(cut(affinity, 3)[order], cut(affinity[np.ix_(order, order)], 3)) == 1.0


@pytest.mark.parametrize("balance", [0.0, 0.7])
def test_the_cost_is_the_mean_share_of_edges_that_leave_minus_the_entropy_of_the_sizes(balance):
    affinity, _ = _graph([3, 4], seed=3)
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


def test_the_cost_without_a_balance_is_the_negative_modularity():
    affinity, _ = _graph([3, 4], seed=3)
    assigned, total = np.array([0, 0, 1, 1, 1, 0, 1]), affinity.sum()
    degrees = [sum(row) for row in affinity]
    modularity = sum(
        (affinity[i, j] - degrees[i] * degrees[j] / total) / total
        for i in range(7)
        for j in range(7)
        if assigned[i] == assigned[j]
    )
    assert cost(affinity, assigned, 2, "auto") == pytest.approx(-modularity)


@pytest.mark.parametrize(("sizes", "balanced_is_right"), [([8, 8, 8], True), ([40, 4, 4], False)])
def test_a_split_block_and_two_merged_ones_cost_more_whatever_the_sizes(sizes, balanced_is_right):
    affinity, blocks = _graph(sizes, between=0.1)
    wrong = np.where(blocks == 0, np.arange(len(blocks)) % 2, 2)
    assert cost(affinity, blocks, 3, "auto") < cost(affinity, wrong, 3, "auto")
    assert (cost(affinity, blocks, 3, 1.0) < cost(affinity, wrong, 3, 1.0)) == balanced_is_right


def test_nodes_without_edges_are_allowed():
    affinity, blocks = _graph([6, 6])
    alone = np.zeros((14, 14))
    alone[:12, :12] = affinity
    parts = cut(alone, 2)
    assert parts.shape == (14,)
    assert accuracy(blocks, parts[:12]) == 1.0


def test_as_many_parts_as_nodes_leave_each_node_alone():
    np.testing.assert_array_equal(cut(np.eye(3), 5), [0, 1, 2])


@pytest.mark.parametrize("clusters", [2, 5, 12])
def test_the_cut_is_the_one_of_separate_runs_of_k_means_and_sums_over_all_triples(clusters):
    affinity, _ = _graph([6] * clusters, between=0.3, seed=clusters)
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


def _confused_members(labels, classes):
    """Soft assignments to two prototypes per class by as many members, each with an error of its own.

    Member m cannot distinguish the classes m and m + 1, and splits the class m + 2 into its two prototypes.
    """
    draw, sets = np.random.default_rng(0), []
    for member in range(classes):
        first, second, split = ((member + i) % classes for i in range(3))
        classes_seen = np.where(np.isin(labels, [first, second])[:, None], [first, second], labels[:, None])
        weights = np.full((len(labels), classes, 2), 0.001)
        np.put_along_axis(weights, np.repeat(classes_seen[:, :, None], 2, axis=2), 1.0, axis=1)
        weights[labels == split, split, draw.integers(2, size=(labels == split).sum())] = 50.0
        weights = weights.reshape(len(labels), -1) * draw.uniform(0.8, 1.2, (len(labels), 2 * classes))
        sets.append(weights / weights.sum(axis=1, keepdims=True) / classes)
    return np.concatenate(sets, axis=1)


def test_the_consensus_is_right_where_every_member_has_an_error_of_its_own():
    labels = np.repeat(np.arange(5), 40)
    p = _confused_members(labels, 5)
    affinity = p.T @ p

    def score(columns, parts):
        return accuracy(labels, (p[:, columns] @ np.eye(5)[parts]).argmax(axis=1))

    members = [slice(10 * m, 10 * m + 10) for m in range(5)]
    assert max(score(own, cut(affinity[own, own], 5)) for own in members) <= 0.8
    assert score(slice(None), consensus(affinity, [10] * 5, 5)) == 1.0


def test_the_consensus_of_one_member_is_its_cut():
    affinity, _ = _graph([7, 9, 8, 12])
    np.testing.assert_array_equal(consensus(affinity, [36], 4, 0.5), cut(affinity, 4, 0.5))


def test_nodes_in_wrong_parts_move_to_their_blocks():
    affinity, blocks = _graph([6, 9, 20], between=0.05)
    wrong = np.where(np.arange(len(blocks)) % 4 == 0, (blocks + 1) % 3, blocks)
    assert accuracy(blocks, wrong) < 1
    np.testing.assert_array_equal(move_nodes(affinity, wrong, 3), blocks)


@pytest.mark.parametrize("seed", range(5))
def test_after_the_moves_no_single_move_increases_the_modularity(seed):
    affinity, _ = _graph([5, 5, 5, 5], between=0.7, seed=seed)
    start = np.arange(20) % 4
    found = move_nodes(affinity, start, 4)
    assert cost(affinity, found, 4, "auto") <= cost(affinity, start, 4, "auto")
    for node in range(20):
        for part in range(4):
            moved = np.where(np.arange(20) == node, part, found)
            if len(np.unique(moved)) == 4:
                assert cost(affinity, moved, 4, "auto") > cost(affinity, found, 4, "auto") - 1e-8


def test_no_part_loses_its_last_node():
    start = np.array([0, 1, 2, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(move_nodes(np.ones((8, 8)) - np.eye(8), start, 3), start)
    np.testing.assert_array_equal(move_nodes(np.zeros((3, 3)), np.array([0, 1, 1]), 2), [0, 1, 1])


def _members_that_disagree():
    """Two members with nodes of three classes: the first one's own edges divide two of them wrongly."""
    classes = np.repeat(np.arange(3), 6)
    first, second = (np.where(of[:, None] == of, 1.0, 0.01) for of in (np.r_[[0] * 6, [1, 2] * 6], classes))
    return np.block([[first, 2 * second], [2 * second, 2 * second]]), np.tile(classes, 2)


def test_a_members_part_of_two_classes_is_divided_by_the_consensus(monkeypatch):
    affinity, classes = _members_that_disagree()
    assert accuracy(classes, consensus(affinity, [18, 18], 3)) == 1.0
    unmoved = consensus(affinity, [18, 18], 3, balance=0.0)
    monkeypatch.setattr(normalized_cut, "move_nodes", lambda affinity, assigned, parts: assigned)
    assert accuracy(classes, consensus(affinity, [18, 18], 3)) < 1.0
    np.testing.assert_array_equal(consensus(affinity, [18, 18], 3, balance=0.0), unmoved)
