import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedmcc.errors import InputError
from fedmcc.evaluation.linear import Body, Supervision
from fedmcc.evaluation.splits import Examples
from fedmcc.numerics.randomness import generator

CPU = torch.device("cpu")


def _examples(n, seed, classes=3, apart=1.0):
    """Normal clouds around the corners of a simplex, of classes numbered 2, 4, 6, ..."""
    draw = np.random.default_rng(seed)
    numbers = np.arange(n) % classes
    rows = apart * np.eye(classes, 8)[numbers] + draw.normal(size=(n, 8))
    return Examples(rows.astype(np.float32), 2 * numbers + 2)


def _accuracy(learned, scored, supervision=None, seed=0):
    body = Body.of_features(learned.inputs.shape[1], CPU)
    return (supervision or Supervision()).accuracy(body, learned, scored, generator(seed, "linear"))


def _logistic(learned, scored):
    return LogisticRegression(C=1e6, max_iter=1000).fit(*learned).score(*scored)


def test_defaults_are_those_of_linear_evaluation():
    assert Supervision() == Supervision(learning_rate=3e-3, epochs=200, batch_size=2048)


def test_trained_to_the_end_it_is_logistic_regression():
    learned, scored = _examples(300, 0), _examples(1000, 1)
    converged = Supervision(learning_rate=0.03, epochs=1500, batch_size=300)
    assert _accuracy(learned, scored, converged) == pytest.approx(_logistic(learned, scored), abs=0.002)


def test_the_defaults_come_close_to_logistic_regression():
    learned, scored = _examples(6000, 2), _examples(1000, 3)
    assert _accuracy(learned, scored) == pytest.approx(_logistic(learned, scored), abs=0.01)


def test_separable_classes_are_all_found():
    assert _accuracy(_examples(600, 4, 5, apart=20.0), _examples(200, 5, 5, apart=20.0)) == 1.0


def test_random_labels_are_found_by_chance():
    learned, scored = _examples(2000, 6, 10, apart=0.0), _examples(3000, 7, 10, apart=0.0)
    assert _accuracy(learned, scored) == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / 3000))


def test_the_same_generator_gives_the_same_and_another_another():
    learned, scored = _examples(300, 8), _examples(2000, 9)
    quick = Supervision(epochs=3, batch_size=64)
    first, second, other = (_accuracy(learned, scored, quick, seed) for seed in (0, 0, 1))
    assert first == second != other


def test_a_class_that_was_not_learned_is_never_found():
    learned, scored = _examples(100, 10, 2, apart=20.0), _examples(90, 11, 3, apart=20.0)
    assert _accuracy(learned, scored) == pytest.approx(2 / 3)


def test_labels_of_one_class_are_refused():
    with pytest.raises(InputError, match="give images of 2 or more"):
        _accuracy(_examples(10, 12, 1), _examples(10, 13, 1))


def _images(n):
    """Bright above or bright below."""
    draw, labels = np.random.default_rng(n), np.arange(n) % 2
    bright = labels[:, None, None, None] == (np.arange(4) >= 2)[:, None]
    return Examples((bright * 155 + draw.integers(0, 100, (n, 1, 4, 4))).astype(np.uint8), labels)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_encoder_stays_as_it_is_and_another_learns(frozen):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    body = Body(6, encoder, lambda images: images / 255, CPU, frozen)
    found = Supervision(1e-2, epochs=60, batch_size=8).accuracy(body, _images(40), _images(41), generator(0))
    assert found == 1.0
    same = [torch.equal(value, before[name]) for name, value in encoder.state_dict().items()]
    assert all(same) if frozen else not any(same)
