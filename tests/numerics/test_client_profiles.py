"""Which clients hold the nodes of a graph, and what parts say about it."""

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from fedmcc.numerics.client_profiles import PartProfiles, concentration, information


def _masses(clients, nodes, images, seed=0):
    """Images of clients that all draw their nodes from one distribution."""
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.ones(nodes))
    return np.stack([draw.multinomial(images, shares) for _ in range(clients)], axis=1).astype(float)


@pytest.mark.parametrize("images", [150, 1_000, 100_000])
def test_clients_of_one_distribution_differ_by_chance_only(images):
    masses = _masses(5, 30, images)
    assert abs(concentration(masses, masses.sum() / 30)) < 0.05


def test_clients_that_share_no_node_have_the_largest_concentration():
    masses = np.kron(np.eye(5), np.full((4, 1), 1e6))
    assert concentration(masses, 1e6) == pytest.approx(1.0, abs=1e-5)


def test_the_concentration_is_the_mean_squared_share_from_that_of_equal_clients_to_one():
    """Two clients with shares .75 and .25 of each node: mean squared share .625, between .5 and 1."""
    masses = np.array([[75.0, 25.0], [25.0, 75.0]])
    assert concentration(masses, np.inf) == pytest.approx((0.625 - 0.5) / 0.5)


def test_one_client_and_no_image_have_no_concentration():
    assert concentration(np.ones((3, 1)), 10.0) == 0.0
    assert concentration(np.zeros((3, 2)), 10.0) == 0.0


def test_information_of_parts_minus_that_of_one_part_is_mutual_information():
    counts = np.random.default_rng(0).integers(0, 9, (4, 3))
    shares = counts / counts.sum()
    found = information(shares).sum() - information(shares.sum(axis=0))
    assert found == pytest.approx(mutual_info_score(None, None, contingency=counts))


def test_an_empty_part_and_a_client_without_images_have_no_information():
    np.testing.assert_array_equal(information(np.array([[0.0, 0.0], [0.0, 2.0]])), [0, 0])


def test_gains_of_a_move_are_differences_of_information_before_and_after_moves():
    nodes, assigned = _masses(3, 8, 50), np.arange(8) % 3
    profiles = PartProfiles(nodes, assigned, 3)
    for node, new in ((0, 1), (4, 2), (0, 2)):
        old, after = int(assigned[node]), assigned.copy()
        after[node] = new
        before, then = (information(np.eye(3)[parts].T @ nodes).sum() for parts in (assigned, after))
        assert profiles.gains(node, old)[new] == pytest.approx(then - before)
        profiles.move(node, old, new)
        assigned = after
