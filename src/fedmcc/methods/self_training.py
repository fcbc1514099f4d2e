"""Self-training of encoder and prototypes on sharpened assignments, undone unless it helps.

The stages are named "polish" and "choice" in configurations and run directories.
"""

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import entr

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.cross_client_contrast import CrossClientPair
from fedmcc.methods.extras import Additive, additive_mismatch
from fedmcc.methods.mcc import receive_pair
from fedmcc.networks.momentum import Branch
from fedmcc.networks.prototypes import Prototypes
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, add_prefix, detached, select, strip_prefix

SELF_TRAINED = ("encoder", "cluster_projector")


class SelfTrainingPair(CrossClientPair):
    """A momentum pair with a copy of the encoder and head from before self-training."""

    def __init__(self, online: Branch, projections: int) -> None:
        super().__init__(online, projections)
        before = deepcopy(online).requires_grad_(False)
        before.instance_projector = None
        self.kept = before


class Outputs(NamedTuple):
    """Soft assignments of both views by both networks, and all clients' cluster sizes in every row."""

    a: Tensor
    b: Tensor
    a_target: Tensor
    b_target: Tensor
    sizes: Tensor


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Stage):
    """Train the assignment of each view to match the target's sharpened assignment of the other view."""

    momentum: float
    entropy_weight: float
    name: str = "polish"
    trained: Parts = ("online.encoder", HEAD)
    shared: Parts = ("online.encoder", HEAD)

    def represent(self, net: SelfTrainingPair, a: Tensor, b: Tensor) -> Outputs:
        """Assign both views with both networks, without gradient for the target."""
        online, target = net.online, net.target
        t_a, t_b = without_gradient(lambda: tuple(target.assign(target.encoder(view)) for view in (a, b)))
        y_a, y_b = online.assign(online.encoder(a)), online.assign(online.encoder(b))
        sizes = _head(target).marginal.clamp_min(1e-6)
        return Outputs(y_a, y_b, t_a, t_b, sizes.expand(len(a), -1))

    def loss(self, outputs: Outputs) -> Tensor:
        """Cross-entropy to p² / f of the target, minus the entropy of all clients' cluster sizes f (D21).

        The entropy enters linearised, because a client changes only its part of f: the gradient of -H(f) is
        log f, up to a constant.
        """
        sizes = outputs.sizes[0]
        loss = _cross_entropy(_sharpened(outputs.b_target, sizes), outputs.a)
        loss = 0.5 * (loss + _cross_entropy(_sharpened(outputs.a_target, sizes), outputs.b))
        mean = 0.5 * (outputs.a + outputs.b).mean(dim=0)
        return loss + self.entropy_weight * (mean * sizes.log()).sum()

    def after_step(self, net: SelfTrainingPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(self.momentum)

    def receive(self, net: SelfTrainingPair, task: Task, memory: Memory) -> None:
        """Reset the target to the global network, so that prototypes mean the same at every client."""
        receive_pair(net, task, memory, "reset")

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """No extras; this client's cluster sizes are put into the head, which the server averages."""
        _head(net.online).marginal.copy_(_size_and_entropy(net.online, batches)[0])
        return {}

    def additive(self, weights: State) -> dict[str, Additive]:
        """No extras."""
        return {}

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights; in the first round, also save the model from before self-training."""
        weights = super().combine(updates, model).weights
        if updates[0].round == 1:
            weights |= add_prefix("kept", _self_trained(model, "online"))
        return Aggregate(weights, {})


@dataclass(frozen=True, kw_only=True)
class ModelSelection(Stage):
    """Compare the networks before and after self-training without labels, and keep the better one.

    The criterion is the mutual information of image and cluster: the entropy of the cluster sizes minus the
    mean entropy of the soft assignments. It decreases when assignments become uncertain or clusters vanish.
    """

    name: str = "choice"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder", "kept")

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Mean assignment and mean entropy for the networks before and after self-training."""
        images = list(batches)
        measured = [_size_and_entropy(branch, images) for branch in (net.kept, net.online)]
        return {
            "sizes": torch.stack([sizes for sizes, _ in measured]),
            "doubt": torch.stack([entropy for _, entropy in measured]),
        }

    def additive(self, weights: State) -> dict[str, Additive]:
        """Both are means."""
        clusters = len(weights[f"{HEAD}.marginal"])
        return {
            "sizes": Additive(torch.float64, (2, clusters)),
            "doubt": Additive(torch.float64, (2,)),
        }

    def extras_error(self, update: Update) -> str:
        """Check that the sizes can be means of soft assignments."""
        clusters = len(update.weights[f"{HEAD}.marginal"])
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        sizes, entropy = update.extras["sizes"], update.extras["doubt"]
        valid = (
            (sizes >= 0).all()
            and ((sizes.sum(dim=1) - 1).abs() < 1e-2).all()
            and ((entropy >= 0) & (entropy <= math.log(clusters) + 1e-2)).all()
        )
        return "" if valid else "Its cluster sizes are not means of soft assignments."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Restore the network from before self-training unless the mutual information has increased."""
        counts = torch.tensor(self.counts(updates), dtype=torch.float64)
        shares = counts / counts.sum()
        sizes = torch.einsum("k,kbc->bc", shares, torch.stack([u.extras["sizes"] for u in updates]))
        entropy = shares @ torch.stack([update.extras["doubt"] for update in updates])
        before, after = entr(sizes).sum(dim=1) - entropy
        return Aggregate({} if after > before else add_prefix("online", _self_trained(model, "kept")), {})


def _head(branch: Branch) -> Prototypes:
    assert isinstance(branch.cluster_projector, Prototypes)
    return branch.cluster_projector


def _size_and_entropy(branch: Branch, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean soft assignment and the mean entropy of the assignments, in inference mode."""
    branch.eval()
    y = torch.cat([branch.assign(branch.encoder(batch)).cpu() for batch in batches]).double()
    return y.mean(dim=0), entr(y).sum(dim=1).mean()


def _self_trained(model: State, branch: str) -> State:
    return detached(strip_prefix(branch, select(model, [f"{branch}.{part}" for part in SELF_TRAINED])))


def _sharpened(p: Tensor, sizes: Tensor) -> Tensor:
    """DEC's target distribution p² / f, normalised, where f are the cluster sizes of all clients."""
    q = p**2 / sizes
    return q / q.sum(dim=1, keepdim=True)


def _cross_entropy(q: Tensor, p: Tensor) -> Tensor:
    return -(q * p.clamp_min(1e-8).log()).sum(dim=1).mean()
