"""FedMCC+: the paper's scheme with its weak points mended, for clients that hold few classes each.

Instance contrast anchored on the online network; prototypes from one federated k-means instead of a head
trained from nothing; then encoder and prototypes are polished together, with the entropy of *all* clients'
cluster sizes (D21).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.losses import Anchor
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage
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
    polish_rounds: int = 10
    polish_epochs: int = 1
    prototype_temperature: float = 0.1

    def build(self, encoder: nn.Module, features: int, clusters: int) -> MomentumPair:
        """Two branches with a head of prototypes each."""
        instance = instance_projector(features, self.hidden or features, self.projections)
        head = Prototypes(features, clusters, self.prototype_temperature)
        return PolishedPair(Branch(encoder, instance, head))

    def stages(self) -> tuple[Stage, ...]:
        """Representation, centroids, polish."""
        kmeans = FederatedKMeans(temperature=self.prototype_temperature)
        return (
            Representation(rounds=self.rounds, epochs=self.epochs, method=self),
            *kmeans.stages(),
            Polish(rounds=self.polish_rounds, epochs=self.polish_epochs, method=self),
        )


class PolishedPair(MomentumPair):
    """A pair that knows which share of all images its client holds."""

    share: Tensor

    def __init__(self, online: Branch) -> None:
        super().__init__(online)
        self.register_buffer("share", torch.ones(()), persistent=False)


class Outputs(NamedTuple):
    """Soft assignments of both views by both networks; what all clients know, the same in every row."""

    a: Tensor
    b: Tensor
    a_target: Tensor
    b_target: Tensor
    marginal: Tensor
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
        return Outputs(y_a, y_b, t_a, t_b, head.marginal.expand(len(a), -1), net.share.expand(len(a), 1))

    def loss(self, outputs: Outputs) -> Tensor:
        """Cross-entropy to p² / f of the target, minus the entropy of the global mean assignment."""
        marginal, share = outputs.marginal[0], outputs.share[0]
        rest = (1 - share) * marginal
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
        return {"mean": total / total.sum()}

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
