"""Stages with several cluster heads, of which the one with the smallest loss is used; labels play no part."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.extras import Additive, extras_mismatch
from fedmcc.methods.inputs import Overview
from fedmcc.numerics.state_dicts import State

LOSSES = "head_losses"


@dataclass(frozen=True, kw_only=True)
class BestHead(Stage, ABC):
    """Clients send the mean loss of each head in their last epoch; the server chooses the smallest.

    A subclass defines `by_head`, and its notes include those of `first_notes` here.
    """

    heads: int

    @abstractmethod
    def by_head(self, outputs: Any) -> Tensor:
        """The loss of each head for a whole batch."""

    def first_notes(self, net: Any, count: int) -> State:
        """No losses yet."""
        return {"losses": torch.zeros(self.heads), "steps": torch.zeros(())}

    def prepare(self, net: Any, overview: Overview) -> None:
        """Start the sums of an epoch."""
        net.notes |= {name: torch.zeros_like(net.notes[name]) for name in ("losses", "steps")}

    @torch.no_grad()
    def after_step(self, net: Any, outputs: Any) -> None:
        """Add the losses of a batch."""
        net.notes["losses"] += self.by_head(outputs).to(net.notes["losses"])
        net.notes["steps"] += 1

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The mean loss of each head."""
        return {LOSSES: net.notes["losses"].cpu() / net.notes["steps"].cpu().clamp_min(1)}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The mean losses."""
        return {LOSSES: Additive(torch.float32, (self.heads,))}

    def extras_error(self, update: Update) -> str:
        """Check that there is a loss for each head."""
        return extras_mismatch(update.extras, {LOSSES: (torch.float32, (self.heads,))})

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights, and choose the head with the smallest loss over all images."""
        weights = super().combine(updates, model).weights
        losses = torch.stack([update.extras[LOSSES].double() for update in updates])
        total = torch.tensor(self.counts(updates), dtype=torch.float64) @ losses
        return Aggregate({**weights, f"{HEAD}.best": total.argmin()}, {})
