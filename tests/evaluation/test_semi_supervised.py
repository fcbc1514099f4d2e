from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedmcc.data.base import ImageSet
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.linear import ClassifierTraining
from fedmcc.evaluation.semi_supervised import FEW_LABELS_TRAINING, LABEL_SHARES, SemiSupervised
from fedmcc.evaluation.splits import EncodedImages, labelled, stratified
from fedmcc.numerics.randomness import generator

pytestmark = pytest.mark.slow  # takes seconds

SCORES = ["probe_1%", "probe_10%", "finetune_1%", "finetune_10%"]


def _encoder():
    """A trainable linear layer that copies the pixels."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 256))
    with torch.no_grad():
        encoder[1].weight.copy_(torch.eye(256))
        encoder[1].bias.zero_()
    return encoder


def _labelled(n, seed, encoder, labels=None):
    """Images of 4 classes, each bright in one quarter, with features of the encoder."""
    draw = np.random.default_rng(seed)
    rows = np.arange(n) % 4
    bright = rows[:, None, None, None] == (np.arange(16) // 4)[:, None]
    images = (bright * 155 + draw.integers(0, 100, (n, 1, 16, 16))).astype(np.uint8)
    with torch.no_grad():
        features = encoder(_plain(torch.from_numpy(images))).numpy()
    return labelled(
        EncodedImages(ImageSet(images, rows if labels is None else labels), Extracted(features, None)), "x"
    )


def _plain(images):
    return images.float() / 255


def _accuracies(encoder, labels=(None, None), seed=0, training=FEW_LABELS_TRAINING):
    train_set, test_set = _labelled(400, 0, encoder, labels[0]), _labelled(800, 1, encoder, labels[1])
    return SemiSupervised(encoder, _plain, training).accuracies(train_set, test_set, seed)


def test_settings_are_those_of_the_protocol():
    assert ClassifierTraining(learning_rate=1e-3, epochs=100, batch_size=128) == FEW_LABELS_TRAINING
    assert list(LABEL_SHARES.values()) == [0.01, 0.1]


def test_separable_classes_are_recognised_from_one_image_each():
    assert _accuracies(_encoder()) == dict.fromkeys(SCORES, 1.0)


def test_random_labels_have_the_accuracy_of_chance():
    draw = np.random.default_rng(2)
    accuracies = _accuracies(_encoder(), (draw.integers(0, 4, 400), draw.integers(0, 4, 800)))
    assert [*accuracies.values()] == pytest.approx([0.25] * 4, abs=5 * np.sqrt(0.25 * 0.75 / 800))


def test_finetuning_learns_what_a_frozen_encoder_hides():
    blind = _encoder()
    with torch.no_grad():
        blind[1].weight.zero_()
    accuracies = _accuracies(blind)
    assert accuracies["probe_10%"] == 0.25
    assert accuracies["finetune_10%"] > 0.9


def _normal(n, seed):
    labels = np.arange(n) % 3
    features = (np.eye(3, 4)[labels] + np.random.default_rng(seed).normal(size=(n, 4))).astype(np.float32)
    images = np.zeros((n, 1, 1, 1), dtype=np.uint8)
    return labelled(EncodedImages(ImageSet(images, labels), Extracted(features, None)), "x")


def test_a_probe_trained_to_convergence_equals_logistic_regression_on_the_same_few_labels():
    train_set, test_set = _normal(3000, 0), _normal(1000, 1)
    rows = stratified(train_set.labels, 0.1, generator(5, "semi", "10%"))
    truth = LogisticRegression(C=1e6).fit(train_set.features.inputs[rows], np.arange(3000)[rows] % 3)
    semi = SemiSupervised(nn.Identity(), _plain, ClassifierTraining(0.03, epochs=1000, batch_size=300))
    own = semi._probe(train_set, test_set, rows, generator(0))
    assert own == pytest.approx(truth.score(*test_set.features), abs=0.002)


def test_the_encoder_of_the_run_does_not_change():
    encoder = _encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    _accuracies(encoder, training=replace(FEW_LABELS_TRAINING, epochs=2))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_the_seed_decides_which_labels_are_used():
    quick = replace(FEW_LABELS_TRAINING, epochs=1)
    first, again, other = (_accuracies(_encoder(), seed=seed, training=quick) for seed in (0, 0, 1))
    assert first == again != other


def test_of_withheld_images_the_same_number_of_labels_is_used(monkeypatch):
    train_set, sizes = _normal(300, 0), []
    monkeypatch.setattr(
        SemiSupervised, "_probe", lambda self, _, __, rows, ___: sizes.append(len(rows)) or 0.0
    )
    monkeypatch.setattr(SemiSupervised, "_finetune", SemiSupervised._probe)
    SemiSupervised(nn.Identity(), _plain, available=0.1).accuracies(train_set, train_set, 0)
    assert sizes == [30, 300, 30, 300]  # 1 % and 10 % of 3,000 images, a tenth of which was withheld
