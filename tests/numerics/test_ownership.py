"""Affinities by ownership: what a client holds decides how prototypes are connected."""

import numpy as np
import pytest

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics.consensus import consensus
from fedmcc.numerics.ownership import by_ownership, concentration, owned_consensus


def _masses(clients, nodes, images, seed=0):
    """Images of clients that all draw their nodes from one distribution."""
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.ones(nodes))
    return np.stack([draw.multinomial(images, shares) for _ in range(clients)]).astype(float)


@pytest.mark.parametrize("images", [150, 1_000, 100_000])
def test_clients_of_one_distribution_differ_by_chance_only(images):
    masses = _masses(5, 30, images)
    assert abs(concentration(masses, masses.sum() / 30)) < 0.05


def test_clients_that_share_no_node_have_the_largest_concentration():
    masses = np.kron(np.eye(5), np.full((1, 4), 1e6))
    assert concentration(masses, 1e6) == pytest.approx(1.0, abs=1e-5)


def test_the_concentration_is_the_mean_squared_share_from_that_of_equal_clients_to_one():
    """Two clients with shares .75 and .25 of each node: mean squared share .625, between .5 and 1."""
    masses = np.array([[75.0, 25.0], [25.0, 75.0]])
    assert concentration(masses, np.inf) == pytest.approx((0.625 - 0.5) / 0.5)


def test_one_client_and_no_image_have_no_concentration():
    assert concentration(np.ones((1, 3)), 10.0) == 0.0
    assert concentration(np.zeros((2, 3)), 10.0) == 0.0


def test_each_edge_is_multiplied_by_the_clients_shares_of_both_ends():
    draw = np.random.default_rng(0)
    affinities = [rows.T @ rows for rows in draw.random((3, 5, 4))]
    masses = np.stack([affinity.sum(axis=1) for affinity in affinities])
    expected = np.zeros((4, 4))
    for i in range(4):
        for j in range(4):
            for client in range(3):
                first, second = (masses[client, node] / masses[:, node].sum() for node in (i, j))
                expected[i, j] += affinities[client][i, j] * first * second
    np.testing.assert_allclose(by_ownership(affinities, masses), expected)


def test_clients_that_use_all_nodes_alike_change_nothing_but_the_scale():
    affinity = np.random.default_rng(1).random((6, 6))
    affinity += affinity.T
    affinities = [affinity, 3 * affinity]
    masses = np.stack([each.sum(axis=1) for each in affinities])
    np.testing.assert_allclose(by_ownership(affinities, masses), (1 / 16 + 27 / 16) * affinity)


def _visitors(members=3, clients=4):
    """Clients with two classes of two nodes each, and a few images of each in the nodes of the others.

    A visitor confuses the classes of its host: its images connect each node of the one with one of the other.
    """
    classes, affinities = np.arange(4 * clients) // 2, []
    for client in range(clients):
        own = classes // 2 == client
        graph = np.where((classes[:, None] == classes) & own, 1.0, 1e-3)
        for host in set(range(clients)) - {client}:
            for nodes in ([4 * host, 4 * host + 2], [4 * host + 1, 4 * host + 3]):
                graph[np.ix_(nodes, nodes)] += 0.6
        affinities.append(np.kron(np.ones((members, members)), (graph + graph.T) / 2))
    return affinities, np.tile(classes, members)


def test_visitors_no_longer_join_the_classes_of_their_host():
    affinities, classes = _visitors()
    masses, members = np.stack([each.sum(axis=1) for each in affinities]), [16] * 3
    whole, owned = sum(affinities), by_ownership(affinities, masses)
    assert accuracy(classes, consensus(whole, members, 8)) < 0.8
    assert accuracy(classes, owned_consensus(owned, whole, members, 8, "auto")) == 1.0


def test_small_groups_without_edges_to_others_do_not_take_the_place_of_classes(block_graph):
    owned, blocks = block_graph([12, 12, 12], between=0.2)
    owned = np.pad(owned, (0, 4))
    owned[-4:, -4:] = np.kron(np.eye(2), np.ones((2, 2)))  # two pairs that no owner connects with others
    classes = np.append(blocks, [1, 1, 2, 2])
    whole = np.where(classes[:, None] == classes, 1.0, owned)
    assert accuracy(classes, consensus(owned, [40], 3)) < 0.5
    assert accuracy(classes, owned_consensus(owned, whole, [40], 3, "auto")) == 1.0
