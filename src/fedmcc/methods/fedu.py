"""FedU (Zhuang et al., ICCV 2021): FedBYOL in which diverged clients keep their own predictor."""

from dataclasses import dataclass
from typing import Literal

from fedmcc.messages import Task
from fedmcc.methods.base import STARTED, Memory, require_positive
from fedmcc.methods.fedbyol import FedBYOL, kernels
from fedmcc.networks.momentum import PredictorPair
from fedmcc.numerics.state_dicts import (
    State,
    add_prefix,
    copy_into,
    detached,
    mean_distance,
    select,
    strip_prefix,
)


@dataclass(frozen=True)
class FedU(FedBYOL):
    """FedBYOL with the divergence-aware predictor update of Zhuang et al. (2021).

    The FedU paper measures the distance between the global encoder and the client's last encoder
    ("global"), its published code how far the client's encoder moved in its last training ("moved").
    """

    threshold: float = 0.4  # mu; at or above it, the client keeps its predictor
    divergence: Literal["global", "moved"] = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "threshold")

    def receive(self, net: PredictorPair, task: Task, memory: Memory) -> None:
        """Adopt the global online network, and the predictor only if the encoders have not diverged."""
        local = detached(select(net.state_dict(), ("online.encoder", "predictor")))
        first = STARTED not in memory
        super().receive(net, task, memory)
        if not first and self._divergence(local, task.weights, memory) >= self.threshold:
            copy_into(net, select(local, ("predictor",)))
        if self.divergence == "moved":
            memory |= add_prefix("received", kernels(task.weights))

    def _divergence(self, local: State, incoming: State, memory: Memory) -> float:
        start = kernels(incoming) if self.divergence == "global" else strip_prefix("received", memory)
        return mean_distance(kernels(local), start)
