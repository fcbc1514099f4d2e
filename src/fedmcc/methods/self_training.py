"""The polish: encoder and prototypes learn from their own clearer assignments; kept if it did no harm."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import entr

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage, unlike
from fedmcc.methods.cross_client_contrast import SeparatedPair
from fedmcc.methods.federated_kmeans import HEAD
from fedmcc.methods.mcc import receive_pair
from fedmcc.networks.momentum import Branch
from fedmcc.networks.prototypes import Prototypes
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, add_prefix, detached, select, strip_prefix

LEARNED = ("encoder", "cluster_projector")


class KeepingPair(SeparatedPair):
    """A pair beside which the encoder and head are kept as they were before the polish."""

    def __init__(self, online: Branch, projections: int) -> None:
        super().__init__(online, projections)
        kept = deepcopy(online).requires_grad_(False)
        kept.instance_projector = None
        self.kept = kept


class Outputs(NamedTuple):
    """Soft assignments of both views by both networks; all clients' cluster sizes, the same in every row."""

    a: Tensor
    b: Tensor
    a_target: Tensor
    b_target: Tensor
    sizes: Tensor


@dataclass(frozen=True, kw_only=True)
class Polish(Stage):
    """Self-training: each view learns the target's sharpened assignment of the other view."""

    momentum: float
    entropy_weight: float
    name: str = "polish"
    trained: Parts = ("online.encoder", HEAD)
    shared: Parts = ("online.encoder", HEAD)

    def represent(self, net: KeepingPair, a: Tensor, b: Tensor) -> Outputs:
        """Both views through both networks."""
        online, target = net.online, net.target
        t_a, t_b = without_gradient(lambda: tuple(target.assign(target.encoder(view)) for view in (a, b)))
        y_a, y_b = online.assign(online.encoder(a)), online.assign(online.encoder(b))
        sizes = _head(target).marginal.clamp_min(1e-6)
        return Outputs(y_a, y_b, t_a, t_b, sizes.expand(len(a), -1))

    def loss(self, outputs: Outputs) -> Tensor:
        """Cross-entropy to p² / f of the target, minus the entropy of all clients' cluster sizes f (D21).

        Of the entropy it is the part that moves with this client: the gradient of -H(f) is log f.
        """
        sizes = outputs.sizes[0]
        learned = _cross_entropy(_sharpened(outputs.b_target, sizes), outputs.a)
        learned = 0.5 * (learned + _cross_entropy(_sharpened(outputs.a_target, sizes), outputs.b))
        mean = 0.5 * (outputs.a + outputs.b).mean(dim=0)
        return learned + self.entropy_weight * (mean * sizes.log()).sum()

    def after_step(self, net: KeepingPair, outputs: object) -> None:
        """The target follows."""
        net.update(self.momentum)

    def receive(self, net: KeepingPair, task: Task, memory: Memory) -> None:
        """The target starts from the global network each round: prototypes must mean the same everywhere."""
        receive_pair(net, task, memory, "reset")

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Nothing: this client's cluster sizes are in the head, where the average makes them all clients'."""
        _head(net.online).marginal.copy_(_certainty(net.online, batches)[0])
        return {}

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The average; before the first round counts, the model that it started from is kept."""
        weights = super().combine(updates, model).weights
        if updates[0].round == 1:
            weights |= add_prefix("kept", _learned(model, "online"))
        return Aggregate(weights, {})


@dataclass(frozen=True, kw_only=True)
class Choice(Stage):
    """Clients judge the network before the polish and after it, without labels; the server keeps the better.

    The measure is the information that an assignment gives on an image: the entropy of the cluster sizes
    minus the mean entropy of the soft assignments. It falls when clusters grow uncertain, or vanish.
    """

    name: str = "choice"
    rounds: int = 1
    epochs: int = 0
    trained: Parts = ()
    shared: Parts = (HEAD,)
    frozen: Parts = ("online.encoder", "kept")

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Mean assignment and mean entropy by either network."""
        images = list(batches)
        judged = [_certainty(branch, images) for branch in (net.kept, net.online)]
        return {
            "sizes": torch.stack([sizes for sizes, _ in judged]),
            "doubt": torch.stack([doubt for _, doubt in judged]),
        }

    def extras_error(self, update: Update) -> str:
        """Means of soft assignments."""
        clusters = len(update.weights[f"{HEAD}.marginal"])
        looks = {"sizes": (torch.float64, (2, clusters)), "doubt": (torch.float64, (2,))}
        if wrong := unlike(update.extras, looks):
            return wrong
        sizes, doubt = update.extras["sizes"], update.extras["doubt"]
        sound = (sizes >= 0).all() and (doubt >= 0).all() and ((sizes.sum(dim=1) - 1).abs() < 1e-2).all()
        return "" if sound else "Its cluster sizes are not means of soft assignments."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The network of before the polish, unless the one after it tells more."""
        counts = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        shares = counts / counts.sum()
        sizes = torch.einsum("k,kbc->bc", shares, torch.stack([u.extras["sizes"] for u in updates]))
        doubt = shares @ torch.stack([update.extras["doubt"] for update in updates])
        before, after = entr(sizes).sum(dim=1) - doubt
        return Aggregate({} if after > before else add_prefix("online", _learned(model, "kept")), {})


def _head(branch: Branch) -> Prototypes:
    assert isinstance(branch.cluster_projector, Prototypes)
    return branch.cluster_projector


def _certainty(branch: Branch, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean soft assignment and the mean entropy of a branch in inference mode."""
    branch.eval()
    y = torch.cat([branch.assign(branch.encoder(batch)).cpu() for batch in batches]).double()
    return y.mean(dim=0), entr(y).sum(dim=1).mean()


def _learned(model: State, branch: str) -> State:
    return detached(strip_prefix(branch, select(model, [f"{branch}.{part}" for part in LEARNED])))


def _sharpened(p: Tensor, sizes: Tensor) -> Tensor:
    """DEC's target p² / f, normalised, where f are the cluster sizes of all clients."""
    q = p**2 / sizes
    return q / q.sum(dim=1, keepdim=True)


def _cross_entropy(q: Tensor, p: Tensor) -> Tensor:
    return -(q * p.clamp_min(1e-8).log()).sum(dim=1).mean()
