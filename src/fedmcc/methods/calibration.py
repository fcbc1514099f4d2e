"""Running statistics of the averaged encoder, measured anew on views of all clients' images.

docs/decisions/0027 reports the effect.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmcc.methods.base import Parts, Stage
from fedmcc.networks.running_statistics import has_running_statistics, measured_anew


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
