"""Informative cuts, compared with slow searches and with the definition of mutual information."""

import numpy as np
import pytest

from fedmcc.evaluation.clustering import accuracy
from fedmcc.numerics import informative_cuts
from fedmcc.numerics.informative_cuts import (
    Informative,
    beyond_chance,
    grouped_owners,
    known_about_owner,
    recognised,
)

WEIGHTS = [0.0, 2.0, -0.25]


def _random(count, weight, seed=0, owners=3):
    draw = np.random.default_rng(seed)
    p = draw.dirichlet(np.full(count, 0.3), 60)
    owner = np.eye(owners)[draw.integers(owners, size=60)]
    return Informative(p.T @ p / 60, owner.T @ p / 60, weight)


def _information(joint):
    """The mutual information of rows and columns of a table of probabilities, cell by cell."""
    rows, columns, total = joint.sum(axis=1), joint.sum(axis=0), 0.0
    for i, j in np.ndindex(*joint.shape):
        if joint[i, j] > 0:
            total += joint[i, j] * np.log(joint[i, j] / (rows[i] * columns[j]))
    return total


def _slow_value(found, labels):
    """V by sums over all pairs of prototypes: one case for each cluster, and one for different clusters."""
    affinity, clusters, count = found.affinity, labels.max() + 1, range(len(labels))
    joint, expected, degrees = np.zeros(clusters + 1), np.zeros(clusters + 1), affinity.sum(axis=1)
    for i in count:
        for j in count:
            case = labels[i] if labels[i] == labels[j] else clusters
            joint[case] += affinity[i, j]
            expected[case] += degrees[i] * degrees[j]
    held = np.array([[row[labels == c].sum() for c in range(clusters)] for row in found.holdings])
    cases = sum(x * np.log(x / y) for x, y in zip(joint, expected, strict=True) if x > 0)
    return cases + found.weight * _information(held)


def _divisions(count, clusters):
    """All divisions into this number of clusters, whose numbers are in the order of their first members."""

    def grow(labels):
        if len(labels) == count:
            return [labels] if max(labels) + 1 == clusters else []
        return [found for label in range(max(labels) + 2) for found in grow([*labels, label])]

    return [np.array(labels) for labels in grow([0]) if max(labels) < clusters]


def _numbered(labels):
    """The labels with clusters numbered in the order of their first members."""
    order = list(dict.fromkeys(labels.tolist()))
    return [order.index(label) for label in labels]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_value_is_that_of_sums_over_all_pairs(weight):
    found = _random(8, weight)
    for labels in (np.arange(8), np.zeros(8, dtype=int), np.array([0, 1, 2, 0, 1, 2, 2, 0])):
        assert found.value(labels) == pytest.approx(_slow_value(found, labels), abs=1e-12)


def test_two_clusters_of_two_prototypes_keep_the_mutual_information_of_an_image_and_its_neighbour():
    """With equal sizes, to be in different clusters is one case of two equally likely ones."""
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    found = Informative(joint, np.ones((1, 2)) / 2)
    assert found.value(np.arange(2)) == pytest.approx(_information(joint))


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("seed", range(3))
def test_each_merge_is_the_one_of_the_largest_value(weight, seed):
    found = _random(8, weight, seed)
    labels = np.arange(8)
    for clusters in range(8, 1, -1):
        assert _numbered(found.cuts[clusters - 1]) == _numbered(labels)
        merges = [np.where(labels == b, a, labels) for b in range(clusters) for a in range(b)]
        merges = [np.array(_numbered(merged)) for merged in merges]
        labels = max(merges, key=lambda merged: _slow_value(found, merged))
    assert not found.cuts[0].any()


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("seed", range(3))
def test_after_moves_no_single_move_gives_more(weight, seed):
    found = _random(8, weight, seed)
    start = np.arange(8) % 3
    improved = found.improved(start)
    assert found.value(improved) >= found.value(start)
    for j, new in np.ndindex(8, 3):
        moved = improved.copy()
        moved[j] = new
        if len(np.unique(moved)) == 3:
            assert _slow_value(found, moved) <= _slow_value(found, improved) + 1e-9


def test_a_move_never_empties_a_cluster():
    found = _random(6, 0.0)
    improved = found.improved(np.array([0, 1, 2, 2, 2, 2]))
    assert sorted(np.unique(improved)) == [0, 1, 2]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("seed", range(4))
def test_no_division_of_six_prototypes_is_missed_by_much(weight, seed):
    found = _random(6, weight, seed)
    divisions = _divisions(6, 3)
    assert len(divisions) == 90  # the Stirling number of six elements in three parts
    values = [_slow_value(found, division) for division in divisions]
    value = found.value(found.improved(found.cuts[2]))
    assert max(values) - 0.1 * (max(values) - min(values)) <= value <= max(values) + 1e-12


@pytest.mark.parametrize("weight", WEIGHTS)
def test_of_three_clear_pairs_of_prototypes_the_best_division_is_found(weight):
    affinity = np.kron(np.eye(3), np.full((2, 2), 0.9 / 12)) + 0.1 / 36
    found = Informative(affinity, np.full((2, 6), 1 / 12), weight)
    best = max(_divisions(6, 3), key=lambda division: _slow_value(found, division))
    assert _numbered(found.improved(found.cuts[2])) == best.tolist() == [0, 0, 1, 1, 2, 2]


def test_owners_decide_between_equally_similar_prototypes():
    """In a ring of four prototypes, each is as similar to the next as to the last one."""
    affinity = np.eye(4) + 0.5 * (np.roll(np.eye(4), 1, axis=0) + np.roll(np.eye(4), -1, axis=0))
    holdings = np.array([[0.25, 0, 0, 0.25], [0, 0.25, 0.25, 0]])
    by_classes = Informative(affinity / affinity.sum(), holdings, 2.0).cuts[1]
    by_looks = Informative(affinity / affinity.sum(), holdings, -0.25).cuts[1]
    assert _numbered(by_classes) == [0, 1, 1, 0]
    assert _numbered(by_looks) == [0, 0, 1, 1]


def test_as_many_clusters_as_prototypes_leave_each_alone():
    assert _random(5, 2.0).cuts[4].tolist() == [0, 1, 2, 3, 4]


def test_what_clusters_tell_about_the_owner_is_mutual_information():
    holdings = np.random.default_rng(0).dirichlet(np.ones(12)).reshape(3, 4)
    labels = np.array([0, 1, 1, 0])
    held = np.stack([holdings[:, [0, 3]].sum(axis=1), holdings[:, [1, 2]].sum(axis=1)], axis=1)
    assert known_about_owner(holdings, labels) == pytest.approx(_information(held))


def test_beyond_chance_nothing_is_known_of_equal_owners_and_almost_all_of_disjoint_ones():
    labels, images = np.arange(4), 1_000.0
    assert beyond_chance(np.full((4, 4), 1 / 16), labels, images) == 0
    # I = ln 4, and chance is 3 · 3 / (2 · 1000).
    expected = 1 - 9 / 2_000 / np.log(4)
    assert beyond_chance(np.eye(4) / 4, labels, images) == pytest.approx(expected)


def test_the_information_of_random_owners_is_mostly_chance():
    """The mean over many draws of the plug-in estimate is the chance, (clusters - 1)(owners - 1) / 2n."""
    draw, images = np.random.default_rng(0), 2_000.0
    found = [draw.multinomial(2_000, np.full(20, 1 / 20)).reshape(4, 5) / images for _ in range(200)]
    mean = np.mean([known_about_owner(holdings, np.arange(5)) for holdings in found])
    assert mean == pytest.approx(4 * 3 / (2 * images), rel=0.1)
    shares = [beyond_chance(holdings, np.arange(5), images) for holdings in found]
    assert np.mean(shares) < 0.25


def _prototypes(shift, clusters=5, owners=3, each=4):
    """Prototypes near one direction per cluster, shifted by a vector of the one owner of each."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(clusters), owners * each)
    owner = np.tile(np.repeat(np.arange(owners), each), clusters)
    shifts = draw.normal(size=(owners, 12))
    vectors = 3 * np.eye(12)[labels] + shift * shifts[owner] + 0.1 * draw.normal(size=(len(labels), 12))
    return vectors, np.eye(owners)[:, owner] / len(owner), labels


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, -0.3, 0.2), (0.5, 0.95, 1.0)])
def test_owners_are_recognised_if_they_shift_all_clusters_alike(shift, low, high):
    assert low <= recognised(*_prototypes(shift)) <= high


def test_owners_of_different_clusters_are_not_recognised():
    vectors, _, labels = _prototypes(0.0)
    holdings = np.eye(5)[:, labels] / len(labels)
    assert recognised(vectors, holdings, labels) == 0


def test_owners_whose_shift_differs_from_cluster_to_cluster_are_not_recognised():
    vectors, holdings, labels = _prototypes(0.0)
    shifts = np.random.default_rng(1).normal(size=(5, 3, 12))
    assert recognised(vectors + shifts[labels, holdings.argmax(axis=0)], holdings, labels) < 0.2


def test_groups_of_owners_hold_together_what_their_owners_hold():
    draw = np.random.default_rng(0)
    mixtures = np.eye(8)[draw.integers(8, size=40)] + 0.01
    holdings = mixtures * draw.uniform(1, 5, (40, 1))
    grouped = grouped_owners(holdings)
    assert grouped.shape == (16, 8)
    np.testing.assert_allclose(grouped.sum(axis=0), holdings.sum(axis=0))


def test_owners_are_grouped_by_what_they_hold():
    mixtures = np.eye(16).repeat(3, axis=0)
    sizes = np.arange(1, 49)[:, None]
    grouped = grouped_owners(mixtures * sizes)
    assert accuracy(np.arange(16), grouped.argmax(axis=0)) == 1.0
    np.testing.assert_allclose(grouped.max(axis=0), sizes.reshape(16, 3).sum(axis=1))


def test_few_owners_are_not_grouped():
    holdings = np.full((informative_cuts.MOST_OWNERS, 3), 1 / 48)
    assert grouped_owners(holdings) is holdings
