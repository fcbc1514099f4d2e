"""The target network of a client at the start of a round (D10)."""

from typing import Literal

import torch

from fedmcc.messages import Task
from fedmcc.methods.base import STARTED, Memory
from fedmcc.networks.momentum import MomentumPair
from fedmcc.numerics.state_dicts import copy_into

Target = Literal["keep", "reset", "share"]


def receive_pair(net: MomentumPair, task: Task, memory: Memory, target: Target) -> None:
    """Adopt the global model; the target is kept, reset to the online network, or part of the task."""
    copy_into(net, task.weights)
    first = STARTED not in memory
    if target == "reset" or (target == "keep" and first):
        net.reset_target()
    memory[STARTED] = torch.tensor(True)
