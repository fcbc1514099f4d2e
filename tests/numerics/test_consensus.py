"""The consensus of several cuts: errors of single members, moves of nodes, and parts without images."""

import numpy as np
import pytest

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics import consensus as module
from fedmcc.numerics.consensus import consensus, fill, move_nodes, used
from fedmcc.numerics.normalized_cut import Modularity, cost, cut


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


def test_the_consensus_of_one_member_is_its_cut(block_graph):
    affinity, _ = block_graph([7, 9, 8, 12])
    np.testing.assert_array_equal(consensus(affinity, [36], 4, 0.5), cut(affinity, 4, 0.5))


def test_nodes_in_wrong_parts_move_to_their_blocks(block_graph):
    affinity, blocks = block_graph([6, 9, 20], between=0.05)
    wrong = np.where(np.arange(len(blocks)) % 4 == 0, (blocks + 1) % 3, blocks)
    assert accuracy(blocks, wrong) < 1
    np.testing.assert_array_equal(move_nodes(affinity, wrong, 3), blocks)


@pytest.mark.parametrize("seed", range(5))
def test_after_the_moves_no_single_move_increases_the_modularity(block_graph, seed):
    affinity, _ = block_graph([5, 5, 5, 5], between=0.7, seed=seed)
    start = np.arange(20) % 4
    found = move_nodes(affinity, start, 4)
    assert cost(affinity, found, 4, Modularity()) <= cost(affinity, start, 4, Modularity())
    for node in range(20):
        for part in range(4):
            moved = np.where(np.arange(20) == node, part, found)
            if len(np.unique(moved)) == 4:
                assert cost(affinity, moved, 4, Modularity()) > cost(affinity, found, 4, Modularity()) - 1e-8


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
    monkeypatch.setattr(module, "move_nodes", lambda affinity, assigned, *_: assigned)
    assert accuracy(classes, consensus(affinity, [18, 18], 3)) < 1.0
    np.testing.assert_array_equal(consensus(affinity, [18, 18], 3, balance=0.0), unmoved)


def test_a_higher_resolution_moves_nodes_to_smaller_parts(block_graph):
    affinity, blocks = block_graph([8, 8, 8], between=0.4)
    joined = np.minimum(blocks, 1)
    joined[-1] = 2  # the third part has one node of its class
    np.testing.assert_array_equal(np.bincount(move_nodes(affinity, joined, 3, resolution=0.5)), [8, 15, 1])
    assert accuracy(blocks, move_nodes(affinity, joined, 3, resolution=2.0)) == 1.0


def test_the_resolution_multiplies_the_share_that_is_expected_of_parts_of_these_sizes(block_graph):
    affinity, blocks = block_graph([3, 4], seed=3)
    shares = [affinity[blocks == part].sum() / affinity.sum() for part in (0, 1)]
    expected = sum(share * share for share in shares)
    first, second = (cost(affinity, blocks, 2, Modularity(resolution)) for resolution in (1.0, 1.5))
    assert second - first == pytest.approx(0.5 * expected)


def test_a_part_is_used_if_most_members_have_nodes_in_it():
    member = np.array([0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(used(np.array([0, 1, 0, 1, 0, 2]), member, 4), [True, True, False, False])


def _two_close_classes(images=60):
    """Three members with six prototypes for each of four classes, of which two are hard to tell apart.

    The largest modularity is that of three clusters, since the two are closer to each other than to chance.
    """
    draw, labels = np.random.default_rng(0), np.repeat(np.arange(4), images)
    similar = np.eye(4) + np.array([[0] * 4, [0] * 4, [0, 0, 0, 0.8], [0, 0, 0.8, 0]]) + 0.002
    sets = []
    for _ in range(3):
        weights = similar[labels][:, np.repeat(np.arange(4), 6)] * draw.uniform(0.9, 1.1, (len(labels), 24))
        sets.append(weights / weights.sum(axis=1, keepdims=True) / 3)
    return labels, np.concatenate(sets, axis=1)


def test_as_many_clusters_are_used_as_were_asked_for(monkeypatch):
    labels, p = _two_close_classes()
    affinity = p.T @ p

    def clusters():
        return (p @ np.eye(4)[consensus(affinity, [24] * 3, 4)]).argmax(axis=1)

    assert accuracy(labels, clusters()) == 1.0
    monkeypatch.setattr(module, "RESOLUTIONS", (1.0,))
    assert accuracy(labels, clusters()) == 1.0  # filled instead
    monkeypatch.setattr(module, "fill", lambda affinity, assigned, *_: assigned)
    assert len(np.unique(clusters())) == 3


def test_an_unused_part_gets_the_half_that_is_least_connected_to_the_other():
    classes, member = np.tile(np.repeat(np.arange(4), 4), 2), np.repeat([0, 1], 16)
    similar = np.where(classes[:, None] == classes, 1.0, 0.01)
    close = np.isin(classes, [0, 1])
    similar[np.ix_(close, close)] = np.maximum(similar[np.ix_(close, close)], 0.5)
    far = np.isin(classes, [2, 3])
    similar[np.ix_(far, far)] = np.maximum(similar[np.ix_(far, far)], 0.1)
    assigned = np.where(close, 0, 1)
    assigned[0] = 2  # a single node, of one member only
    filled = fill(similar, assigned, member, 3)
    np.testing.assert_array_equal(filled[close], 0)
    assert accuracy(classes[far], filled[far]) == 1.0
    assert set(filled) == {0, 1, 2}


def test_an_unused_part_stays_if_no_other_one_can_be_divided():
    member = np.array([0, 1])
    np.testing.assert_array_equal(fill(np.ones((2, 2)), np.array([0, 0]), member, 2), [0, 0])
    np.testing.assert_array_equal(
        fill(np.eye(4), np.array([0, 0, 1, 1]), np.repeat([0, 1], 2), 2), [0, 0, 1, 1]
    )


def test_a_graph_without_edges_is_divided_without_an_error():
    parts = consensus(np.zeros((24, 24)), [8, 8, 8], 3)
    assert parts.shape == (24,)
    assert set(parts) <= {0, 1, 2}
