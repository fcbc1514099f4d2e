"""Parts of connected nodes that the same clients hold."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import entropy

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics.consensus import consensus, used
from fedmcc.numerics.normalized_cut import Modularity, cost
from fedmcc.numerics.profiled_cut import (
    Exchange,
    Graph,
    Quality,
    _exchanges,
    classes_differ,
    clients_look_different,
    improve,
    join,
    profiled_cut,
    quality,
    score,
)


def _graph(nodes=24, clients=3, seed=0):
    draw = np.random.default_rng(seed)
    affinity = draw.random((nodes, nodes)) ** 4
    return Graph.of(affinity + affinity.T, draw.integers(1, 50, (nodes, clients)).astype(float))


def _shapes(members=3):
    """Four classes of two groups each, which no edge connects; four clients prefer one class each."""
    groups = np.arange(24) // 3
    classes = groups // 2
    graph = np.where(groups[:, None] == groups, 1.0, 0.0)
    held = np.where(classes[:, None] == np.arange(4), 70.0, 10.0)
    affinity = np.kron(np.ones((members, members)), graph)
    return affinity, np.tile(held, (members, 1)), np.tile(classes, members)


def test_groups_without_an_edge_are_one_class_if_clients_hold_them_in_equal_proportions():
    affinity, masses, classes = _shapes()
    assert accuracy(classes, profiled_cut(affinity, masses, [24] * 3, 4)) == 1.0
    assert accuracy(classes, consensus(affinity, [24] * 3, 4)) < 1.0


def _scanners(members=3):
    """Four classes at each of four clients, which has a prototype of each, since its images look alike."""
    classes, clients = np.divmod(np.arange(16), 4)
    same_class, same_client = classes[:, None] == classes, clients[:, None] == clients
    graph = np.where(same_class, 1.0, np.where(same_client, 0.3, 0.02))
    held = np.where(clients[:, None] == np.arange(4), 70.0, 2.0)
    affinity = np.kron(np.ones((members, members)), graph)
    return affinity, np.tile(held, (members, 1)), np.tile(classes, members)


def _qualities(affinity, masses, members, parts):
    graph = Graph.of(affinity, masses)
    cuts = consensus(affinity, members, parts), profiled_cut(affinity, masses, members, parts)
    return [quality(graph, cut, parts) for cut in cuts]


def test_clients_whose_images_look_different_do_not_divide_the_classes():
    affinity, masses, classes = _scanners()
    assert accuracy(classes, profiled_cut(affinity, masses, [16] * 3, 4)) == 0.25  # one cluster per client
    by_images, by_clients = _qualities(affinity, masses, [16] * 3, 4)
    assert by_images.kept == pytest.approx(0.0, abs=1e-9)
    assert clients_look_different(by_images)
    assert not classes_differ(by_images, by_clients)


def test_clients_that_prefer_classes_do_not_look_different():
    affinity, masses, _ = _shapes()
    by_images, by_clients = _qualities(affinity, masses, [24] * 3, 4)
    assert not clients_look_different(by_images)
    assert classes_differ(by_images, by_clients)


@pytest.mark.parametrize(
    ("by_images", "by_clients", "expected"),
    [
        (Quality(0.7, 0.5), Quality(0.6, 0.9), True),  # .4 of the information for .1 of modularity
        (Quality(0.7, 0.5), Quality(0.5, 0.9), False),  # for .2: images connect what the cut divides
        (Quality(0.7, 0.1), Quality(0.6, 0.9), False),  # clusters of images say nothing about the client
        (Quality(0.6, 0.5), Quality(0.7, 0.6), True),  # the better one in both
    ],
)
def test_information_is_worth_little_modularity_only(by_images, by_clients, expected):
    assert classes_differ(by_images, by_clients) == expected


def test_proportions_that_differ_by_chance_do_not_hide_the_classes():
    affinity, masses, classes = _shapes()
    masses = np.random.default_rng(0).poisson(masses).astype(float)
    assert accuracy(classes, profiled_cut(affinity, masses, [24] * 3, 4)) == 1.0


def test_classes_that_the_same_clients_hold_are_found_by_their_edges(block_graph):
    affinity, blocks = block_graph([8, 8, 8, 8], between=0.05)
    masses = np.where(blocks[:, None] // 2 == np.arange(2), 40.0, 5.0)
    assert accuracy(blocks, profiled_cut(affinity, masses, [32], 4)) == 1.0


def test_a_part_of_one_member_alone_is_replaced_by_half_of_another():
    """It would win no image, since an image has the part that most members give it."""
    affinity, masses, _ = _shapes()
    stray = np.zeros((73, 73))
    stray[0, 0], stray[1:, 1:] = 1.0, affinity
    masses = np.pad(masses, ((1, 0), (0, 1)))
    masses[0, 4] = 100  # at a node of the first member, which only a fifth client holds
    found = profiled_cut(stray, masses, [25, 24, 24], 5)
    assert used(found, np.repeat(np.arange(3), [25, 24, 24]), 5).all()


def _information(table):
    """I(row; column) = H(row) + H(column) - H(row, column)."""
    return entropy(table.sum(axis=1)) + entropy(table.sum(axis=0)) - entropy(table.ravel())


def _kept(masses, assigned):
    parts = np.stack([masses[assigned == part].sum(axis=0) for part in np.unique(assigned)])
    return _information(parts) / _information(masses)


def test_the_score_is_modularity_plus_the_share_of_information_kept():
    graph, assigned = _graph(), np.arange(24) % 4
    alone = score(graph, np.arange(24), 24) + cost(graph.affinity, np.arange(24), 24, Modularity())
    assert alone == pytest.approx(1.0)
    assert score(graph, np.zeros(24, dtype=int), 1) == pytest.approx(0.0)
    modularity = -cost(graph.affinity, assigned, 4, Modularity())
    assert quality(graph, assigned, 4) == pytest.approx((modularity, _kept(graph.profiles, assigned)))
    assert score(graph, assigned, 4) == pytest.approx(sum(quality(graph, assigned, 4)))


def test_parts_are_joined_by_the_largest_score():
    """From five parts to four, the pair is the one that a comparison of all pairs finds."""
    graph, assigned = _graph(), np.arange(24) % 5
    pairs = [(i, j) for i, j in product(range(5), range(5)) if i < j]
    best = max(score(graph, np.where(assigned == j, i, assigned), 5) for i, j in pairs)
    assert score(graph, join(graph, assigned, 4), 4) == pytest.approx(best)


def _after(assigned, found: Exchange):
    changed = np.where(assigned == found.part, found.joined, assigned)
    changed[found.nodes] = found.part
    return changed


def test_the_gain_of_an_exchange_is_a_difference_of_scores():
    graph, assigned = _graph(), np.arange(24) % 4
    found = [*_exchanges(graph, assigned, 4, {})]
    assert len(found) == 12  # both halves of each part, and a pair of other parts
    for each in found:
        gain = score(graph, _after(assigned, each), 4) - score(graph, assigned, 4)
        assert each.gain == pytest.approx(gain)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_improving_never_lowers_the_score(parts):
    graph, assigned = _graph(seed=1), np.arange(24) % parts
    better = improve(graph, assigned, parts)
    assert score(graph, better, parts) >= score(graph, assigned, parts)
    assert len(set(better)) == parts
