import numpy as np
import pytest

from fedmcc.errors import InputError
from fedmcc.evaluation.knn import WeightedKNN


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def naive_winner(row: np.ndarray, others: np.ndarray, labels: np.ndarray, knn: WeightedKNN) -> int:
    """The class with most votes, one neighbour at a time."""
    similarities = [cosine(row, other) for other in others.astype(np.float64)]
    votes: dict[int, float] = {}
    for index in sorted(range(len(others)), key=lambda i: -similarities[i])[: knn.neighbours]:
        label = int(labels[index])
        votes[label] = votes.get(label, 0) + np.exp(similarities[index] / knn.temperature)
    return max(votes, key=lambda label: votes[label])


def noisy(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes numbered 4, 9 and 14."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    return (np.eye(3, 5)[labels] + random.normal(size=(count, 5))).astype(np.float32), 5 * labels + 4


@pytest.mark.parametrize("knn", [WeightedKNN(), WeightedKNN(1), WeightedKNN(15, 0.1), WeightedKNN(15, 1.0)])
def test_accuracy_equals_a_vote_counted_one_by_one(knn: WeightedKNN) -> None:
    (train, train_labels), (test, test_labels) = noisy(90, 0), noisy(70, 1)
    winners = [naive_winner(row, train, train_labels, knn) for row in test.astype(np.float64)]
    assert knn.accuracy(train, train_labels, test, test_labels) == pytest.approx(
        np.mean(winners == test_labels)
    )


@pytest.mark.parametrize("knn", [WeightedKNN(), WeightedKNN(7, 0.2)])
@pytest.mark.parametrize("block", [1000, 13])
def test_leave_one_out_is_a_vote_of_all_other_images(
    knn: WeightedKNN, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.evaluation.knn.BLOCK_ROWS", block)
    rows, labels = noisy(60, 2)
    others = [np.delete(np.arange(60), index) for index in range(60)]
    winners = [
        naive_winner(rows[i].astype(np.float64), rows[o], labels[o], knn) for i, o in enumerate(others)
    ]
    assert knn.leave_one_out(rows, labels) == pytest.approx(np.mean(winners == labels))


def test_defaults_are_200_neighbours_and_a_temperature_of_a_tenth() -> None:
    assert WeightedKNN() == WeightedKNN(neighbours=200, temperature=0.1)


def test_separated_classes_are_all_recognised() -> None:
    labels = np.arange(30) % 3
    rows = np.eye(3, dtype=np.float32)[labels]
    assert WeightedKNN(5).accuracy(rows, labels, rows[:9], labels[:9]) == 1
    assert WeightedKNN(5).leave_one_out(rows, labels) == 1


def test_an_image_does_not_vote_for_itself() -> None:
    assert WeightedKNN().leave_one_out(np.eye(2, dtype=np.float32), np.array([0, 1])) == 0


def test_images_without_label_neither_vote_nor_count() -> None:
    rows, labels = noisy(50, 3)
    hidden = np.where(np.arange(50) < 20, -1, labels)
    assert WeightedKNN().leave_one_out(rows, hidden) == WeightedKNN().leave_one_out(rows[20:], labels[20:])


def test_a_class_that_is_not_in_the_train_set_is_never_predicted() -> None:
    rows = np.ones((4, 2), dtype=np.float32)
    assert WeightedKNN().accuracy(rows, np.zeros(4, dtype=np.int64), rows, np.array([0, 0, 0, 8])) == 0.75


def test_a_low_temperature_stays_finite() -> None:
    rows, labels = noisy(40, 4)
    nearest = WeightedKNN(1).leave_one_out(rows, labels)
    assert WeightedKNN(temperature=1e-6).leave_one_out(rows, labels) == nearest


def test_too_few_labels_are_refused() -> None:
    with pytest.raises(InputError, match="kNN needs at least 2 labelled images, but there are 1: add labels"):
        WeightedKNN().leave_one_out(np.eye(2, dtype=np.float32), np.array([0, -1]))


def test_random_labels_have_the_accuracy_of_chance() -> None:
    random = np.random.default_rng(5)
    rows, labels = random.normal(size=(4000, 5)).astype(np.float32), random.integers(0, 10, 4000)
    accuracy = WeightedKNN().accuracy(rows[:1000], labels[:1000], rows[1000:], labels[1000:])
    assert accuracy == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / 3000))


def test_a_sample_of_queries_is_voted_on_by_all_other_images() -> None:
    rows, labels = noisy(80, 3)
    queries = np.random.default_rng(7).choice(80, 30, replace=False)
    others = [np.delete(np.arange(80), index) for index in range(80)]
    winners = [
        naive_winner(rows[i].astype(float), rows[others[i]], labels[others[i]], WeightedKNN(9))
        for i in queries
    ]
    found = WeightedKNN(9).leave_one_out(rows, labels, max_queries=30, seed=7)
    assert found == pytest.approx(np.mean(winners == labels[queries]))


def test_as_many_queries_as_images_are_all_images() -> None:
    rows, labels = noisy(50, 4)
    assert WeightedKNN().leave_one_out(rows, labels, 50) == WeightedKNN().leave_one_out(rows, labels)
