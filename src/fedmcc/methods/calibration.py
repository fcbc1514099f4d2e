"""Running statistics of the averaged encoder, measured anew on views of all clients' images.

docs/decisions/0027 reports the effect.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Parts, Stage
from fedmcc.methods.extras import Additive
from fedmcc.networks.running_statistics import has_running_statistics, measured_anew
from fedmcc.numerics.state_dicts import State, is_running_statistic


@dataclass(frozen=True, kw_only=True)
class Calibration(Stage):
    """One round without training in which BatchNorm's running statistics are measured anew.

    Those of the last round of training belong to networks that clients have changed since, and the average of
    these networks has others. A client that does few steps per round has also averaged over earlier rounds.
    """

    name: str = "calibration"
    rounds: int = 1
    epochs: int = 1
    trained: Parts = ()
    shared: Parts = ("online.encoder",)

    def represent(self, net: Any, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        """Encode both views."""
        return net.online.encoder(a), net.online.encoder(b)

    @torch.no_grad()
    def observe(self, net: Any, batches: Iterable[tuple[Tensor, ...]]) -> None:
        """Set the running statistics to their mean over all batches."""
        encoder = net.online.encoder
        if not has_running_statistics(encoder):
            return
        with measured_anew(encoder):
            for seen in batches:
                self.outputs(net, *seen)

    def additive(self, weights: State) -> dict[str, Additive]:
        """No extras."""
        return {}

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the running statistics; everything else of the encoder stays as it is."""
        states = [
            {name: value for name, value in update.weights.items() if is_running_statistic(name)}
            for update in updates
        ]
        return Aggregate(self.average(states, self.counts(updates), model) if states[0] else {}, {})
