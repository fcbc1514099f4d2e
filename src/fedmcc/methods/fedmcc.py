"""FedMCC: the paper's two stages, instances first and then clusters over the frozen encoder."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmcc.losses import Quartet, cluster_balance, momentum_contrast
from fedmcc.messages import Task
from fedmcc.methods.base import Memory, Parts, Stage
from fedmcc.methods.mcc import MCC, receive_pair
from fedmcc.networks.momentum import MomentumPair


@dataclass(frozen=True)
class FedMCC(MCC):
    """Federated momentum contrastive clustering: Algorithm 1, then Algorithm 2; `mcc` does both at once."""

    rounds: int = 100  # R of Algorithm 1
    epochs: int = 5  # E
    clustering_rounds: int = 10  # R of Algorithm 2
    clustering_epochs: int = 5

    def stages(self) -> tuple[Stage, ...]:
        """Representation, then clustering."""
        instance, cluster = ("encoder", "instance_projector"), ("cluster_projector",)
        return (
            Representation(
                rounds=self.rounds, epochs=self.epochs, shared=self._shared(instance), method=self
            ),
            Clustering(
                rounds=self.clustering_rounds,
                epochs=self.clustering_epochs,
                shared=self._shared(cluster),
                method=self,
            ),
        )

    def _shared(self, parts: Parts) -> Parts:
        branches = ("online", "target") if self.target == "share" else ("online",)
        return tuple(f"{branch}.{part}" for branch in branches for part in parts)


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """Algorithm 1: L_I on the encoder and the instance projector."""

    method: FedMCC
    name: str = "representation"
    trained: Parts = ("online.encoder", "online.instance_projector")
    shared: Parts = ("online.encoder", "online.instance_projector")

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Quartet:
        """Both views through both networks."""
        online, target = net.online, net.target
        z_a, z_b = online.instance(online.encoder(a)), online.instance(online.encoder(b))
        with torch.no_grad():
            return Quartet(z_a, z_b, target.instance(target.encoder(a)), target.instance(target.encoder(b)))

    def loss(self, outputs: Quartet) -> Tensor:
        """L_I."""
        method = self.method
        form = (method.anchor, method.positive_in_denominator)
        return momentum_contrast(outputs, method.instance_temperature, *form)

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """The target follows."""
        net.update(self.method.momentum)

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """As MCC: the target stays at home (D10)."""
        receive_pair(net, task, memory, self.method.target)


@dataclass(frozen=True, kw_only=True)
class Clustering(Stage):
    """Algorithm 2: L_C on the cluster projector, over the frozen global encoder."""

    method: FedMCC
    name: str = "clustering"
    trained: Parts = ("online.cluster_projector",)
    shared: Parts = ("online.cluster_projector",)
    frozen: Parts = ("online.encoder",)

    def represent(self, net: MomentumPair, a: Tensor, b: Tensor) -> Quartet:
        """One frozen encoder serves both branches (D13)."""
        with torch.no_grad():
            h_a, h_b = net.online.encoder(a), net.online.encoder(b)
            targets = net.target.assign(h_a), net.target.assign(h_b)
        return Quartet(net.online.assign(h_a), net.online.assign(h_b), *targets)

    def loss(self, outputs: Quartet) -> Tensor:
        """L_C with the entropies maximised (D2) and without the target's (D7)."""
        method = self.method
        columns = Quartet(*(y.T for y in outputs))
        form = (method.anchor, method.positive_in_denominator)
        balance = cluster_balance(outputs.a) + cluster_balance(outputs.b)
        return momentum_contrast(columns, method.cluster_temperature, *form) - method.entropy_weight * balance

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """The target's projector follows; its encoder is not in use."""
        net.update(self.method.momentum, "cluster_projector")

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """As MCC: the target stays at home (D10)."""
        receive_pair(net, task, memory, self.method.target)
