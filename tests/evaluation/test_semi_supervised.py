from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedmcc.data.base import ImageSet
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.linear import Supervision
from fedmcc.evaluation.semi_supervised import FEW, SHARES, SemiSupervised
from fedmcc.evaluation.splits import Part, labelled, stratified
from fedmcc.numerics.randomness import generator

SCORES = ["probe_1%", "probe_10%", "finetune_1%", "finetune_10%"]


def _encoder():
    """The pixels, through a linear layer that could be trained."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 256))
    with torch.no_grad():
        encoder[1].weight.copy_(torch.eye(256))
        encoder[1].bias.zero_()
    return encoder


def _labelled(n, seed, encoder, labels=None):
    """Images of 4 classes, bright in one quarter each; their features by the encoder."""
    draw = np.random.default_rng(seed)
    rows = np.arange(n) % 4
    bright = rows[:, None, None, None] == (np.arange(16) // 4)[:, None]
    images = (bright * 155 + draw.integers(0, 100, (n, 1, 16, 16))).astype(np.uint8)
    with torch.no_grad():
        features = encoder(_plain(torch.from_numpy(images))).numpy()
    return labelled(
        Part(ImageSet(images, rows if labels is None else labels), Extracted(features, None)), "x"
    )


def _plain(images):
    return images.float() / 255


def _accuracies(encoder, labels=(None, None), seed=0, supervision=FEW):
    learned, scored = _labelled(400, 0, encoder, labels[0]), _labelled(800, 1, encoder, labels[1])
    return SemiSupervised(encoder, _plain, supervision).accuracies(learned, scored, seed)


def test_settings_are_those_of_the_protocol():
    assert Supervision(learning_rate=1e-3, epochs=100, batch_size=128) == FEW
    assert list(SHARES.values()) == [0.01, 0.1]


def test_separable_classes_are_all_found_from_one_image_each():
    assert _accuracies(_encoder()) == dict.fromkeys(SCORES, 1.0)


def test_random_labels_are_found_by_chance():
    draw = np.random.default_rng(2)
    found = _accuracies(_encoder(), (draw.integers(0, 4, 400), draw.integers(0, 4, 800)))
    assert [*found.values()] == pytest.approx([0.25] * 4, abs=5 * np.sqrt(0.25 * 0.75 / 800))


def test_finetuning_learns_what_a_frozen_encoder_hides():
    blind = _encoder()
    with torch.no_grad():
        blind[1].weight.zero_()
    found = _accuracies(blind)
    assert found["probe_10%"] == 0.25
    assert found["finetune_10%"] > 0.9


def _cloud(n, seed):
    labels = np.arange(n) % 3
    features = (np.eye(3, 4)[labels] + np.random.default_rng(seed).normal(size=(n, 4))).astype(np.float32)
    images = np.zeros((n, 1, 1, 1), dtype=np.uint8)
    return labelled(Part(ImageSet(images, labels), Extracted(features, None)), "x")


def test_a_probe_trained_to_the_end_is_logistic_regression_on_the_same_few_labels():
    learned, scored = _cloud(3000, 0), _cloud(1000, 1)
    rows = stratified(learned.labels, 0.1, generator(5, "semi", "10%"))
    truth = LogisticRegression(C=1e6).fit(learned.features.inputs[rows], np.arange(3000)[rows] % 3)
    semi = SemiSupervised(nn.Identity(), _plain, Supervision(0.03, epochs=1000, batch_size=300))
    own = semi._probe(learned, scored, rows, generator(0))
    assert own == pytest.approx(truth.score(*scored.features), abs=0.002)


def test_the_encoder_of_the_run_stays_as_it_is():
    encoder = _encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    _accuracies(encoder, supervision=replace(FEW, epochs=2))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_the_seed_decides_which_labels_are_known():
    quick = replace(FEW, epochs=1)
    first, again, other = (_accuracies(_encoder(), seed=seed, supervision=quick) for seed in (0, 0, 1))
    assert first == again != other
