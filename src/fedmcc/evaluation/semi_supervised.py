"""Semi-supervised evaluation: what a few labels are worth on top of what was learned without any."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmcc.evaluation.features import device_of
from fedmcc.evaluation.linear import Body, Supervision
from fedmcc.evaluation.splits import Labelled, Rows, stratified
from fedmcc.numerics.randomness import generator

FEW = Supervision(learning_rate=1e-3, epochs=100, batch_size=128)
SHARES = {"1%": 0.01, "10%": 0.1}  # of the labels, of every class alike


@dataclass(frozen=True, eq=False)
class SemiSupervised:
    """Learns from few labels: with a linear layer alone (`probe`), or with the encoder too (`finetune`).

    Published figures took the first images instead of some of every class, trained the layer alone and
    reported the best epoch on the test images; this takes the last one.
    """

    encoder: nn.Module
    prepare: Callable[[Tensor], Tensor]
    supervision: Supervision = FEW

    def accuracies(self, learned: Labelled, scored: Labelled, seed: int) -> dict[str, float]:
        """Top-1 accuracy of either way, for each share of the labels."""
        shares = SHARES.items()
        few = {
            name: stratified(learned.labels, share, generator(seed, "semi", name)) for name, share in shares
        }
        ways = {"probe": self._probe, "finetune": self._finetune}
        return {
            f"{way}_{name}": train(learned, scored, rows, generator(seed, "semi", name, way))
            for way, train in ways.items()
            for name, rows in few.items()
        }

    def _probe(self, learned: Labelled, scored: Labelled, rows: Rows, draw: torch.Generator) -> float:
        body = Body.of_features(learned.features.inputs.shape[1], device_of(self.encoder))
        return self.supervision.accuracy(body, learned.features.take(rows), scored.features, draw)

    def _finetune(self, learned: Labelled, scored: Labelled, rows: Rows, draw: torch.Generator) -> float:
        encoder = deepcopy(self.encoder)  # the run's own stays as it is
        width = learned.features.inputs.shape[1]
        body = Body(width, encoder, self.prepare, device_of(encoder), frozen=False)
        return self.supervision.accuracy(body, learned.images(rows), scored.images(), draw)
