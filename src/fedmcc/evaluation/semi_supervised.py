"""Semi-supervised evaluation: accuracy after training on a small share of the labels."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmcc.evaluation.linear import Backbone, ClassifierTraining
from fedmcc.evaluation.splits import LabelledImages, Rows, stratified
from fedmcc.networks.inference import device_of
from fedmcc.numerics.randomness import generator

FEW_LABELS_TRAINING = ClassifierTraining(learning_rate=1e-3, epochs=100, batch_size=128)
LABEL_SHARES = {"1%": 0.01, "10%": 0.1}  # of every class


@dataclass(frozen=True, eq=False)
class SemiSupervised:
    """Trains a linear layer on few labels, alone (`probe`) or together with the encoder (`finetune`).

    Published figures used the first images instead of a share of every class, withheld them from the clients,
    trained a head alone (some of them one with a hidden layer) and reported the best epoch on the test
    images; here the last epoch counts.
    """

    encoder: nn.Module
    prepare: Callable[[Tensor], Tensor]
    training: ClassifierTraining = FEW_LABELS_TRAINING
    available: float = 1.0  # share of every class that `train_set` holds, if the others belong to clients

    def accuracies(self, train_set: LabelledImages, test_set: LabelledImages, seed: int) -> dict[str, float]:
        """Top-1 accuracy of `probe` and `finetune` for each share of the labels."""
        rows_of_share = {
            name: stratified(train_set.labels, share / self.available, generator(seed, "semi", name))
            for name, share in LABEL_SHARES.items()
        }
        variants = {"probe": self._probe, "finetune": self._finetune}
        return {
            f"{variant}_{name}": accuracy(train_set, test_set, rows, generator(seed, "semi", name, variant))
            for variant, accuracy in variants.items()
            for name, rows in rows_of_share.items()
        }

    def _probe(
        self, train_set: LabelledImages, test_set: LabelledImages, rows: Rows, draw: torch.Generator
    ) -> float:
        backbone = Backbone.of_features(train_set.features.inputs.shape[1], device_of(self.encoder))
        return self.training.accuracy(backbone, train_set.features.take(rows), test_set.features, draw)

    def _finetune(
        self, train_set: LabelledImages, test_set: LabelledImages, rows: Rows, draw: torch.Generator
    ) -> float:
        encoder = deepcopy(self.encoder)  # the run's own encoder must not change
        width = train_set.features.inputs.shape[1]
        backbone = Backbone(width, encoder, self.prepare, device_of(encoder), frozen=False)
        return self.training.accuracy(backbone, train_set.images(rows), test_set.images(), draw)
