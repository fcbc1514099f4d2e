"""FedEMA (Zhuang et al., ICLR 2022): FedBYOL in which clients mix the global model with their own."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory
from fedmcc.methods.fedbyol import Divergence, FedBYOL, divergence, store_start
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.momentum import PredictorPair
from fedmcc.numerics.state_dicts import State, copy_into, detached, interpolate, select


@dataclass(frozen=True)
class FedEMA(FedBYOL):
    """FedBYOL with the divergence-aware moving average update of Zhuang et al. (2022).

    The more a client's encoder differs from the global encoder, the larger the share of the client's own
    weights in the mixture.
    """

    about: ClassVar[About] = About(
        "federated representation", "Zhuang et al., ICLR", 2022, features_only=True, cost=1.0
    )

    scale: float | None = None  # lambda, 0.8 and 1 in the publication; None: set by the autoscaler
    autoscale: float = 0.7  # tau: share of own weights in the first mixture; sets the client's lambda
    divergence: Divergence = "global"  # lambda depends on it

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "scale", "autoscale")

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Take mu local + (1 - mu) global if the client trained in the previous round, else the global model.

        Buffers are always those of the global model. In the second case the target is reset as well.
        """
        local = detached(select(dict(net.named_parameters()), ("online", "predictor")))
        copy_into(net, task.weights)
        if "round" in memory and task.round - int(memory["round"]) == 1:
            copy_into(net, interpolate(local, task.weights, self._share(local, task.weights, memory)))
        else:
            net.reset_target()
        store_start(self.divergence, net.state_dict(), memory)  # the mixture, not the global model
        memory["round"] = torch.tensor(task.round)

    def _share(self, local: State, incoming: State, memory: Memory) -> float:
        """mu_k = min(lambda_k divergence, 1)."""
        distance = divergence(self.divergence, local, incoming, memory)
        if self.scale is not None:
            return min(self.scale * distance, 1.0)
        if "scale" not in memory and distance > 0:  # set once, then kept
            memory["scale"] = torch.tensor(self.autoscale / distance, dtype=torch.float64)
        return min(float(memory["scale"]) * distance, 1.0) if distance > 0 else 0.0
