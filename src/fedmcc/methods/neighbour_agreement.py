"""Clusters that an image shares with its nearest neighbours at its client: SCAN's second step, federated.

The cluster sizes that are kept in balance are those of all clients' images: a client that holds two classes
must not fill ten clusters (D21). For a single client the loss is SCAN's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Stage
from fedmcc.methods.extras import Additive, extras_mismatch
from fedmcc.methods.inputs import PARTNERS, Overview
from fedmcc.methods.other_clients import mean_over_images, part_of_others
from fedmcc.networks.momentum import Network
from fedmcc.numerics.neighbours import with_nearest
from fedmcc.numerics.state_dicts import State, add_prefix, copy_into, strip_prefix

SHARES = "shares"  # extra of an update: a client's mean assignment; of a task: that of all clients
MIN_SHARE = 1e-6  # of a cluster, so that its logarithm is finite


class Assigned(NamedTuple):
    """Soft assignments of images and of a neighbour of each by all heads, and sizes that are equal in rows.

    `others` are the cluster sizes of the other clients and `share` this client's share of all images.
    """

    y: Float[Tensor, "n heads k"]
    neighbour: Float[Tensor, "n heads k"]
    others: Float[Tensor, "n heads k"]
    share: Float[Tensor, " n"]


@dataclass(frozen=True, kw_only=True)
class NeighbourAgreement(Stage, ABC):
    """Images and their neighbours, found once at each client, are trained to have equal assignments.

    A subclass defines `points` and `represent`; `assigned` makes the outputs from assignments.
    """

    neighbours: int  # candidates of an image, with the image itself
    entropy_weight: float
    weight: str  # name of the weight with a row for each head and cluster
    heads: int = 1

    @abstractmethod
    def points(self, net: Any, overview: Overview) -> Float[Tensor, "n d"]:
        """A row for each image; the inner product of two rows is their similarity."""

    def first_notes(self, net: Any, count: int) -> State:
        """Each image as its own neighbour, and no sizes yet."""
        none = torch.zeros(self._shape(net.state_dict()), dtype=torch.float64)
        return {
            **super().first_notes(net, count),
            PARTNERS: torch.arange(count)[:, None, None],
            "found": torch.tensor(False),
            "own": none,
            "others": none,
            "share": torch.ones(()),
            "sum": none,
        }

    def prepare(self, net: Network, overview: Overview) -> None:
        """Find the neighbours before the client's first epoch, and start the sum of an epoch."""
        super().prepare(net, overview)
        net.notes["sum"] = torch.zeros_like(net.notes["sum"])
        if not net.notes["found"]:
            table = with_nearest(self.points(net, overview), self.neighbours - 1)
            net.notes |= {PARTNERS: table[:, None], "found": torch.tensor(True)}

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Adopt the global weights, and compute the sizes of the other clients' clusters."""
        copy_into(net, task.weights)
        notes = strip_prefix("notes", memory) or self.first_notes(net, int(memory["samples"]))
        others, share = part_of_others(notes["own"], SHARES, task, memory)
        memory |= add_prefix("notes", {**notes, "others": others.clamp_min(0), "share": share})

    def assigned(self, net: Network, y: Tensor, neighbour: Tensor) -> Assigned:
        """The outputs of `represent` for these assignments."""
        notes = net.notes
        others, share = (notes[name].to(y).expand(len(y), *notes[name].shape) for name in ("others", "share"))
        return Assigned(y, neighbour, others, share)

    def by_head(self, outputs: Assigned) -> Float[Tensor, " heads"]:
        """-log y·y' minus the weighted entropy of all clients' cluster sizes f, for each head.

        The entropy enters linearised, because a client changes only its part of f: the gradient of -H(f) is
        log f, up to a constant that has no effect. For a single client the value is that of -H(f), too.
        """
        agreement = (outputs.y * outputs.neighbour).sum(dim=2).clamp_min(1e-8).log().mean(dim=0)
        mean = outputs.y.mean(dim=0)
        sizes = outputs.others[0] + outputs.share[0] * mean.detach()
        shares = (sizes / sizes.sum(dim=1, keepdim=True)).clamp_min(MIN_SHARE)
        return -agreement + self.entropy_weight * (mean * shares.log()).sum(dim=1)

    def loss(self, outputs: Assigned) -> Tensor:
        """The mean over the heads."""
        return self.by_head(outputs).mean()

    @torch.no_grad()
    def after_step(self, net: Any, outputs: Assigned) -> None:
        """Add the assignments of a batch."""
        super().after_step(net, outputs)
        net.notes["sum"] += outputs.y.sum(dim=0).to(net.notes["sum"])

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The mean assignment of the images in the last epoch."""
        sums, notes = net.notes["sum"], net.notes
        total = sums.sum(dim=1, keepdim=True)
        shares = torch.where(total > 0, sums / total.clamp_min(MIN_SHARE), 1 / sums.shape[1])
        notes["own"] = shares
        return {**super().extras(net, batches), SHARES: shares.cpu()}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The mean assignment, and what a stage that this is mixed into declares."""
        own = {SHARES: Additive(torch.float64, self._shape(weights))}
        return {**(super().additive(weights) or {}), **own}

    def extras_error(self, update: Update) -> str:
        """Check that the shares can be a mean of soft assignments."""
        rest = dict(update.extras)
        own = {SHARES: rest.pop(SHARES)} if SHARES in rest else {}
        expected = {SHARES: (torch.float64, self._shape(update.weights))}
        if error := super().extras_error(replace(update, extras=rest)) or extras_mismatch(own, expected):
            return error
        valid = (own[SHARES] >= 0).all() and ((own[SHARES].sum(dim=1) - 1).abs() < 1e-2).all()
        return "" if valid else "Its shares of clusters are not means of soft assignments."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights; the mean assignment of all images is sent with the next tasks."""
        weights, extras = super().combine(updates, model)
        return Aggregate(weights, {**extras, **mean_over_images(self, updates, SHARES)})

    def _shape(self, state: State) -> tuple[int, int]:
        return self.heads, len(state[self.weight]) // self.heads
