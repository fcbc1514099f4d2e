from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy, ari, cluster_sizes, match, nmi, score, size_entropy
from fedmcc.evaluation.kmeans import kmeans, raw_kmeans


def brute_accuracy(labels: np.ndarray, assigned: np.ndarray) -> float:
    """The best of all ways to give clusters different labels; surplus clusters get a label of no image."""
    clusters, names = sorted(set(assigned.tolist())), sorted(set(labels.tolist()))
    names += [-100 - extra for extra in range(len(clusters))]
    ways = [dict(zip(clusters, way, strict=True)) for way in permutations(names, len(clusters))]
    images = list(zip(assigned.tolist(), labels.tolist(), strict=True))
    return max(sum(way[cluster] == label for cluster, label in images) for way in ways) / len(images)


def blobs(count: int = 60, clusters: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Rows along well separated directions, of various lengths, and the number of their direction."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % clusters
    rows = np.eye(clusters, 8)[labels] + 0.05 * random.normal(size=(count, 8))
    return (rows * random.uniform(0.1, 10, size=(count, 1))).astype(np.float32), labels


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_accuracy_is_the_best_of_all_matchings(clusters: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, assigned = random.integers(0, classes, 25), random.integers(0, clusters, 25)
    assert accuracy(labels, assigned) == pytest.approx(brute_accuracy(labels, assigned))


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000))
def test_matching_is_one_to_one_and_gives_the_accuracy(clusters: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, assigned = random.integers(0, classes, 40) * 7, random.integers(0, clusters, 40) * 3
    matched = match(labels, assigned)
    hits = sum(matched.get(a) == b for a, b in zip(assigned.tolist(), labels.tolist(), strict=True))
    assert accuracy(labels, assigned) == pytest.approx(hits / 40)
    assert len(set(matched.values())) == len(matched) == min(len(set(labels)), len(set(assigned)))


def test_relabelled_classes_score_one() -> None:
    labels = np.arange(50) % 5
    assert score(labels, np.array([3, 0, 4, 1, 2])[labels]) == pytest.approx((1, 1, 1))
    assert match(labels, np.array([3, 0, 4, 1, 2])[labels]) == {0: 1, 1: 3, 2: 4, 3: 0, 4: 2}


def test_random_assignments_score_about_chance() -> None:
    random = np.random.default_rng(0)
    labels, assigned = random.integers(0, 10, 20_000), random.integers(0, 10, 20_000)
    assert score(labels, assigned) == pytest.approx((0.1, 0, 0), abs=0.02)


def test_splitting_every_class_in_two_halves_the_accuracy() -> None:
    labels = np.arange(40) % 4
    assert accuracy(labels, np.arange(40) % 8) == 0.5


def test_nmi_is_shared_information_over_the_mean_entropy() -> None:
    random = np.random.default_rng(1)
    labels, assigned = random.integers(0, 3, 30), random.integers(0, 4, 30)
    joint = np.histogram2d(labels, assigned, (range(4), range(5)))[0] / 30
    rows, columns = joint.sum(1), joint.sum(0)
    information = sum(p * np.log(p / (rows[i] * columns[j])) for (i, j), p in np.ndenumerate(joint) if p)
    entropies = -rows @ np.log(rows) - columns @ np.log(columns)
    assert nmi(labels, assigned) == pytest.approx(2 * information / entropies)


def test_ari_is_the_share_of_pairs_kept_together_corrected_for_chance() -> None:
    random = np.random.default_rng(2)
    labels, assigned = random.integers(0, 3, 30), random.integers(0, 4, 30)
    upper = np.triu_indices(30, 1)
    same_label, same_cluster = (np.equal.outer(x, x)[upper] for x in (labels, assigned))
    expected = same_label.mean() * same_cluster.mean()
    best = (same_label.mean() + same_cluster.mean()) / 2
    kept = (same_label & same_cluster).mean()
    assert ari(labels, assigned) == pytest.approx((kept - expected) / (best - expected))


def test_images_without_label_do_not_count() -> None:
    labels, assigned = np.array([0, 0, 1, 1, -1, -1]), np.array([1, 1, 0, 0, 0, 1])
    assert score(labels, assigned) == pytest.approx((1, 1, 1))


def test_without_any_label_there_is_no_score() -> None:
    assert score(None, np.zeros(3, dtype=np.int64)) is None
    assert score(np.full(3, -1), np.zeros(3, dtype=np.int64)) is None
    with pytest.raises(InputError, match="No image has a label"):
        accuracy(np.full(3, -1), np.zeros(3, dtype=np.int64))


def test_sizes_count_empty_clusters() -> None:
    assert cluster_sizes(np.array([0, 2, 2]), 4).tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("sizes", "expected"), [([5, 5, 5, 5], 1), ([20, 0, 0, 0], 0), ([10, 10, 0, 0], 0.5), ([7], 1)]
)
def test_entropy_of_sizes_is_one_for_equal_and_zero_for_one(sizes: list[int], expected: float) -> None:
    assert size_entropy(np.array(sizes)) == pytest.approx(expected)


def test_kmeans_finds_directions_whatever_their_length() -> None:
    features, labels = blobs()
    assert accuracy(labels, kmeans(features, 3, seed=2**62 + 5)) == 1


def test_kmeans_is_deterministic_for_a_seed() -> None:
    features = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
    first, second, other = (kmeans(features, 8, seed) for seed in (3, 3, 4))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_kmeans_of_fewer_distinct_rows_than_clusters_leaves_some_empty() -> None:
    features = np.repeat(np.eye(2, dtype=np.float32), 5, axis=0)
    assigned = kmeans(features, 4, seed=0)
    assert accuracy(np.repeat([0, 1], 5), assigned) == 1
    assert np.count_nonzero(cluster_sizes(assigned, 4)) == 2


def test_more_clusters_than_images_are_refused() -> None:
    with pytest.raises(InputError, match="Cannot make 10 clusters of 3 images"):
        kmeans(np.eye(3, dtype=np.float32), 10, seed=0)


def test_raw_kmeans_separates_dark_from_bright_images() -> None:
    labels = np.arange(20) % 2
    images = np.random.default_rng(0).integers(0, 60, (20, 3, 4, 4)) + 180 * labels[:, None, None, None]
    assert accuracy(labels, raw_kmeans(images.astype(np.uint8), 2, seed=0)) == 1


def test_raw_kmeans_of_large_images_is_that_of_images_reduced_by_averages() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (12, 3, 100, 97), dtype=np.uint8)
    images[::2, 0, :50] //= 4
    reduced = np.empty((12, 3, 33, 32))
    for y, x in np.ndindex(33, 32):
        reduced[:, :, y, x] = images[:, :, 3 * y : 3 * y + 3, 3 * x : 3 * x + 3].mean(axis=(2, 3)) / 255
    expected = KMeans(2, n_init=20, random_state=0).fit(reduced.reshape(12, -1)).labels_
    assert accuracy(expected, raw_kmeans(images, 2, seed=0)) == 1


def test_raw_kmeans_on_more_images_than_fit_in_memory_uses_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmcc.evaluation.kmeans.MAX_PIXELS", 7 * 16)
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 60, (40, 1, 4, 4)) + 180 * labels[:, None, None, None]
    assigned = raw_kmeans(images.astype(np.uint8), 2, seed=0)
    assert accuracy(labels, assigned) == 1


def test_centres_of_a_sample_assign_all_images() -> None:
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 60, (40, 1, 4, 4)) + 180 * labels[:, None, None, None]
    assert accuracy(labels, raw_kmeans(images.astype(np.uint8), 2, seed=0, max_images=9)) == 1
