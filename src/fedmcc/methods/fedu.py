"""FedU (Zhuang et al., ICCV 2021): FedBYOL in which diverged clients keep their own predictor."""

from dataclasses import dataclass
from typing import ClassVar

from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import STARTED, Memory
from fedmcc.methods.fedbyol import Divergence, FedBYOL, divergence, store_start
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.momentum import PredictorPair
from fedmcc.numerics.state_dicts import copy_into, detached, select


@dataclass(frozen=True)
class FedU(FedBYOL):
    """FedBYOL with the divergence-aware predictor update of Zhuang et al. (2021).

    The FedU paper measures the distance between the global encoder and the client's last encoder
    ("global"), its published code how far the client's encoder moved in its last training ("moved").
    """

    about: ClassVar[About] = About(
        "federated representation", "Zhuang et al., ICCV", 2021, features_only=True, cost=1.0
    )

    threshold: float = 0.4  # mu; at or above it, the client keeps its predictor
    divergence: Divergence = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "threshold")

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Adopt the global online network, and the predictor only if the encoders have not diverged."""
        local = detached(select(net.state_dict(), ("online.encoder", "predictor")))
        first = STARTED not in memory
        super().receive(net, task, memory)
        if not first and divergence(self.divergence, local, task.weights, memory) >= self.threshold:
            copy_into(net, select(local, ("predictor",)))
        store_start(self.divergence, task.weights, memory)
