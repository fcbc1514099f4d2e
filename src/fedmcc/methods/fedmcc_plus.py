"""FedMCC+: a stronger form of the paper's scheme, for clients that hold few classes each; in development.

Instance contrast anchored on the online network; prototypes from one federated k-means instead of a head
trained from nothing; then encoder and prototypes are polished together, with the entropy of *all* clients'
cluster sizes (D21).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.losses import Anchor
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage, refuse_unless_positive
from fedmcc.methods.federated_kmeans import HEAD, FederatedKMeans
from fedmcc.methods.fedmcc import Representation
from fedmcc.methods.mcc import MCC, receive_pair
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.networks.projectors import instance_projector
from fedmcc.networks.prototypes import Prototypes
from fedmcc.states import State


@dataclass(frozen=True)
class FedMCCPlus(MCC):
    """FedMCC with online anchors, federated k-means and a joint polish under the global cluster sizes."""

    rounds: int = 100  # R of the representation stage
    epochs: int = 1  # E
    anchor: Anchor = "online"
    polish_rounds: int = 10  # 0: none
    polish_epochs: int = 1
    axes: float = 2.0  # whitened axes per cluster in k-means; 0: features as they are
    prototype_temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_positive(self, "prototype_temperature")
        if self.target == "share":
            raise InputError('method.target = "share" is an ablation of fedmcc: use keep or reset here.')

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches with a head of prototypes each."""
        instance = instance_projector(features, self.hidden or features, self.projections)
        return PolishedPair(Branch(encoder, instance, self._kmeans().head(features, clusters)), clusters)

    def stages(self) -> tuple[Stage, ...]:
        """Representation, federated k-means, polish."""
        first = Representation(rounds=self.rounds, epochs=self.epochs, method=self)
        last = Polish(rounds=self.polish_rounds, epochs=self.polish_epochs, method=self)
        return (first, *self._kmeans().stages(), *([last] if self.polish_rounds else []))

    def _kmeans(self) -> FederatedKMeans:
        return FederatedKMeans(axes=self.axes, temperature=self.prototype_temperature)


class PolishedPair(MomentumPair):
    """A pair that knows which share of all images its client holds, and what it added to their mean."""

    share: Tensor
    own: Tensor

    def __init__(self, online: Branch, clusters: int) -> None:
        super().__init__(online)
        self.register_buffer("share", torch.ones(()), persistent=False)
        self.register_buffer("own", torch.full((clusters,), -1.0))  # negative: nothing yet

    def rest(self, marginal: Tensor) -> Tensor:
        """The other clients' part of the global mean assignment; at first their share of all of it."""
        others = (marginal - self.share * self.own).clamp_min(0)
        return others if bool((self.own >= 0).all()) else (1 - self.share) * marginal


class Outputs(NamedTuple):
    """Soft assignments of both views by both networks; what all clients know, the same in every row."""

    a: Tensor
    b: Tensor
    a_target: Tensor
    b_target: Tensor
    rest: Tensor
    share: Tensor


@dataclass(frozen=True, kw_only=True)
class Polish(Stage):
    """Self-training: each view learns the target's sharpened assignment of the other view."""

    method: FedMCCPlus
    name: str = "polish"
    trained: Parts = ("online.encoder", HEAD)
    shared: Parts = ("online.encoder", HEAD)

    def represent(self, net: PolishedPair, a: Tensor, b: Tensor) -> Outputs:
        """Both views through both networks."""
        online, target = net.online, net.target
        y_a, y_b = online.assign(online.encoder(a)), online.assign(online.encoder(b))
        with torch.no_grad():
            t_a, t_b = target.assign(target.encoder(a)), target.assign(target.encoder(b))
        head = online.cluster_projector
        assert isinstance(head, Prototypes)
        rest = net.rest(head.marginal).expand(len(a), -1)
        return Outputs(y_a, y_b, t_a, t_b, rest, net.share.expand(len(a), 1))

    def loss(self, outputs: Outputs) -> Tensor:
        """Cross-entropy to p² / f of the target, minus the entropy of the global mean assignment."""
        rest, share = outputs.rest[0], outputs.share[0]
        learned = _cross_entropy(_sharpened(outputs.b_target, rest, share), outputs.a)
        learned = 0.5 * (learned + _cross_entropy(_sharpened(outputs.a_target, rest, share), outputs.b))
        sizes = rest + share * 0.5 * (outputs.a.mean(dim=0) + outputs.b.mean(dim=0))
        # Divided by the share, the average over clients is the gradient of the global entropy.
        balance = torch.special.entr(sizes.clamp_min(1e-8)).sum() / share
        loss: Tensor = learned - self.method.entropy_weight * balance.squeeze()
        return loss

    def after_step(self, net: PolishedPair, outputs: object) -> None:
        """The target follows."""
        net.update(self.method.momentum)

    def receive(self, net: PolishedPair, task: Task, memory: Memory) -> None:
        """The target starts from the global network each round: prototypes must mean the same everywhere."""
        receive_pair(net, task, memory, "reset")
        head = net.online.cluster_projector
        assert isinstance(head, Prototypes)
        net.share.copy_((memory["samples"] / head.samples.clamp_min(1)).clamp(max=1))

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The mean soft assignment of this client's images: k numbers."""
        net.eval()
        with torch.no_grad():
            means = [net.online.assign(net.online.encoder(batch)).sum(dim=0) for batch in batches]
        total = torch.stack(means).sum(dim=0)
        net.own.copy_(total / total.sum())
        return {"mean": net.own}

    def combine(self, updates: Sequence[Update]) -> Aggregate:
        """The average, with the cluster sizes of all clients in the head."""
        weights, extras = super().combine(updates)
        counts = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        means = torch.stack([update.extras["mean"] for update in updates]).double()
        weights[f"{HEAD}.marginal"] = ((counts / counts.sum()) @ means).float()
        weights[f"{HEAD}.samples"] = counts.sum().long()
        return Aggregate(weights, extras)


def _sharpened(p: Tensor, rest: Tensor, share: Tensor) -> Tensor:
    """DEC's target p² / f, normalised, where f are the cluster sizes of all clients."""
    f = rest + share * p.mean(dim=0)
    q = p**2 / f.clamp_min(1e-8)
    return q / q.sum(dim=1, keepdim=True)


def _cross_entropy(q: Tensor, p: Tensor) -> Tensor:
    return -(q * p.clamp_min(1e-8).log()).sum(dim=1).mean()
