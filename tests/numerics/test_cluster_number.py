import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import adjusted_rand_score

from fedmcc.numerics.cluster_number import agreement, curve, ranked


def test_agreement_is_the_adjusted_rand_index_of_many_images():
    draw = np.random.default_rng(0)
    first = draw.integers(0, 4, 4000)
    second = np.where(draw.random(4000) < 0.7, first, draw.integers(0, 4, 4000))
    joint = np.zeros((4, 4))
    np.add.at(joint, (first, second), 1)
    assert agreement(joint) == pytest.approx(adjusted_rand_score(first, second), abs=1e-3)


@pytest.mark.parametrize("groups", [3, 6])
def test_the_number_of_separate_groups_is_the_most_stable(groups):
    draw = np.random.default_rng(groups)
    angles = 2 * np.pi * np.arange(groups) / groups
    centres = 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    images = np.concatenate([centre + draw.normal(size=(60, 2)) for centre in centres])
    shares = []
    for each in (4, 6, 4):
        rows = [60 * group + draw.permutation(60)[:each] for group in range(groups)]
        prototypes = images[np.concatenate(rows)]
        squared = ((images[:, None] - prototypes) ** 2).sum(axis=2)
        shares.append(softmax(-squared / 2, axis=1) / 3)
    soft = np.concatenate(shares, axis=1)
    found = curve(soft.T @ soft, [4 * groups, 6 * groups, 4 * groups], 9)
    assert found[:, 0].tolist() == list(range(2, 10))
    assert ranked(found)[0] == groups
    score, stability, _ = found[groups - 2, 1:]
    assert stability == pytest.approx(1, abs=0.01)
    assert score == pytest.approx(1 - 1 / groups, abs=0.02)


def test_the_ranking_is_by_score_and_of_equal_ones_the_fewest_clusters_come_first():
    found = np.array([[2, 0.5, 0.9, 0.1], [3, 0.9, 0.8, 0.0], [4, 0.5, 0.7, 0.2]])
    assert ranked(found) == [3, 2, 4]


def test_a_prototype_without_images_does_not_stop_the_choice():
    soft = np.zeros((60, 12))
    soft[np.arange(60), np.arange(60) % 3] = soft[np.arange(60), 6 + np.arange(60) % 3] = 0.5
    assert np.isfinite(curve(soft.T @ soft, [6, 6], 4)).all()
