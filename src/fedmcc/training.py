"""The only training loop, and the options that belong to it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.data.base import Images
from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.views import Views


@dataclass(frozen=True)
class Training:
    """How a client trains."""

    batch_size: int = 128  # n
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate over the rounds of a stage
    optimizer: Literal["adam", "sgd"] = "adam"
    sgd_momentum: float = 0.9
    weight_decay: float = 0.0
    keep_optimizer: bool | None = None  # from round to round; None: only when training alone (D14)

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise InputError(f"training.batch_size is {self.batch_size}: contrast needs 2 images or more.")
        if not 0 < self.learning_rate < math.inf:  # nan is refused as well
            raise InputError(f"training.learning_rate is {self.learning_rate}: give a positive number.")
        for name in ("weight_decay", "sgd_momentum"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise InputError(f"training.{name} is {value}: give 0 or more.")

    def build_optimizer(
        self, parameters: Iterable[nn.Parameter], pace: float = 1.0, passed: float = 0.0
    ) -> torch.optim.Optimizer:
        """A fresh optimiser for a stage of this pace, of which this share of the rounds has passed."""
        rate = self.learning_rate * pace
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * passed))
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, rate, momentum=self.sgd_momentum, weight_decay=self.weight_decay)


class Step(NamedTuple):
    """One step of the optimiser, as a progress bar wants it."""

    client: int
    loss: float
    samples: int


class DivergedError(ArithmeticError):
    """The loss is no longer a number."""


def train(
    net: Network, stage: Stage, pairs: Iterable[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> Iterator[float]:
    """One step for each pair of views of a batch; yields the losses."""
    for a, b in pairs:
        outputs = stage.represent(net, a, b)
        loss = stage.loss(outputs)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        stage.after_step(net, outputs)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"The loss became {value}: lower training.learning_rate.")
        yield value


def pairs_of_views(
    images: Images, views: Views, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in random order, two views of every batch; the images that fill no batch sit it out."""
    order = torch.randperm(len(images), generator=generator).numpy()
    for start in range(0, len(order) - batch_size + 1, batch_size):
        batch = torch.from_numpy(images[order[start : start + batch_size]]).to(device)
        yield views(batch, generator), views(batch, generator)


def trainable(net: Network, stage: Stage) -> list[nn.Parameter]:
    """The parameters that the stage trains; all others are held still.

    What is frozen normalises with its running statistics, a target network with its own (D12, D13).
    """
    net.train()
    net.requires_grad_(False)
    for part in stage.frozen:
        net.get_submodule(part).eval()
    for part in stage.trained:
        net.get_submodule(part).requires_grad_(True)
    return [parameter for parameter in net.parameters() if parameter.requires_grad]
