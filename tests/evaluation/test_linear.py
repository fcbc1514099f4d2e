import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.linear import Backbone, ClassifierTraining
from fedmcc.evaluation.splits import Examples
from fedmcc.numerics.randomness import generator

pytestmark = pytest.mark.slow  # takes seconds

CPU = torch.device("cpu")


def _examples(n, seed, classes=3, distance=1.0):
    """Normal distributions around the corners of a simplex; the classes are numbered 2, 4, 6, ..."""
    draw = np.random.default_rng(seed)
    numbers = np.arange(n) % classes
    rows = distance * np.eye(classes, 8)[numbers] + draw.normal(size=(n, 8))
    return Examples(rows.astype(np.float32), 2 * numbers + 2)


def _accuracy(train_set, test_set, training=None, seed=0):
    backbone = Backbone.of_features(train_set.inputs.shape[1], CPU)
    return (training or ClassifierTraining()).accuracy(
        backbone, train_set, test_set, generator(seed, "linear")
    )


def _logistic(train_set, test_set):
    return LogisticRegression(C=1e6, max_iter=1000).fit(*train_set).score(*test_set)


def test_defaults_are_those_of_linear_evaluation():
    assert ClassifierTraining() == ClassifierTraining(learning_rate=3e-3, epochs=200, batch_size=2048)


def test_trained_to_convergence_it_equals_logistic_regression():
    train_set, test_set = _examples(300, 0), _examples(1000, 1)
    converged = ClassifierTraining(learning_rate=0.03, epochs=1500, batch_size=300)
    assert _accuracy(train_set, test_set, converged) == pytest.approx(
        _logistic(train_set, test_set), abs=0.002
    )


def test_the_defaults_come_close_to_logistic_regression():
    train_set, test_set = _examples(6000, 2), _examples(1000, 3)
    assert _accuracy(train_set, test_set) == pytest.approx(_logistic(train_set, test_set), abs=0.01)


def test_separable_classes_are_all_recognised():
    assert _accuracy(_examples(600, 4, 5, distance=20.0), _examples(200, 5, 5, distance=20.0)) == 1.0


def test_random_labels_have_the_accuracy_of_chance():
    train_set, test_set = _examples(2000, 6, 10, distance=0.0), _examples(3000, 7, 10, distance=0.0)
    assert _accuracy(train_set, test_set) == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / 3000))


def test_the_generator_decides_the_result():
    train_set, test_set = _examples(300, 8), _examples(2000, 9)
    quick = ClassifierTraining(epochs=3, batch_size=64)
    first, second, other = (_accuracy(train_set, test_set, quick, seed) for seed in (0, 0, 1))
    assert first == second != other


def test_a_class_without_training_examples_is_never_predicted():
    train_set, test_set = _examples(100, 10, 2, distance=20.0), _examples(90, 11, 3, distance=20.0)
    assert _accuracy(train_set, test_set) == pytest.approx(2 / 3)


def test_labels_of_one_class_are_refused():
    with pytest.raises(InputError, match="give images of at least 2 classes"):
        _accuracy(_examples(10, 12, 1), _examples(10, 13, 1))


def _images(n):
    """Images that are bright at the top or at the bottom."""
    draw, labels = np.random.default_rng(n), np.arange(n) % 2
    bright = labels[:, None, None, None] == (np.arange(4) >= 2)[:, None]
    return Examples((bright * 155 + draw.integers(0, 100, (n, 1, 4, 4))).astype(np.uint8), labels)


@pytest.mark.parametrize("frozen", [True, False])
def test_training_changes_the_encoder_unless_it_is_frozen(frozen):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    backbone = Backbone(6, encoder, lambda images: images / 255, CPU, frozen)
    training = ClassifierTraining(1e-2, epochs=60, batch_size=8)
    assert training.accuracy(backbone, _images(40), _images(41), generator(0)) == 1.0
    same = [torch.equal(value, before[name]) for name, value in encoder.state_dict().items()]
    assert all(same) if frozen else not any(same)
