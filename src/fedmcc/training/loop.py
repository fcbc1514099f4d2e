"""The only training loop and its options."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.training.chunked import Batch, Chunks, Result, StoredBatch
from fedmcc.training.memory import memory_size
from fedmcc.training.timing import timed
from fedmcc.training.torch_setup import Precision

FUSED_ADAM_DEVICES = ("cpu", "cuda")  # devices on which torch has a fused Adam
RMSPROP_DECAY = 0.9  # of the mean of squared gradients


@dataclass(frozen=True)
class Training:
    """Options of a client's local training."""

    batch_size: int = 128  # n
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate over the rounds of a stage
    optimizer: Literal["adam", "sgd", "rmsprop"] = "adam"
    sgd_momentum: float = 0.9
    weight_decay: float = 0.0
    keep_optimizer: bool | None = None  # between rounds; None: only if the federation has one client (D14)
    chunk: int | Literal["auto"] | None = None  # images processed at once; auto: as many as fit; None: all
    memory_limit: str | None = None  # of a process or an accelerator, e.g. 2GB; for chunk = "auto"
    closed_form: bool = True  # gradient of the loss in chunked training; false: by autograd
    precision: Precision = "float32"  # of networks, not of losses; auto: bfloat16 if CUDA supports it
    compile: bool = False  # compile encoders with torch.compile: takes minutes once, then steps are faster
    cache_limit: str = "1GB"  # of cached features of a frozen encoder; clients that need more draw new views

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise InputError(
                f"training.batch_size is {self.batch_size}: give 2 or more, contrastive losses need them."
            )
        if not 0 < self.learning_rate < math.inf:  # also false for nan
            raise InputError(f"training.learning_rate is {self.learning_rate}: give a positive number.")
        for name in ("weight_decay", "sgd_momentum"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise InputError(f"training.{name} is {value}: give 0 or more.")
        if isinstance(self.chunk, int) and self.chunk < 1:
            raise InputError(f"training.chunk is {self.chunk}: give 1 image or more.")
        _ = self.cache_bytes  # raises if it is not a size
        if self.memory_limit is not None:
            memory_size(self.memory_limit, "training.memory_limit")
        elif self.chunk == "auto":
            raise InputError('training.chunk is auto: set training.memory_limit, such as "2GB".')

    def chunks(self, batch_size: int) -> Chunks | None:
        """How batches of this size are split into chunks; None: they are not split."""
        if self.chunk == "auto":
            raise InputError("training.chunk is auto, which only a run resolves: give a number.")
        if self.chunk is None or self.chunk >= batch_size:
            return None
        return Chunks(self.chunk, self.closed_form)

    @property
    def cache_bytes(self) -> int:
        """Limit of the feature cache in bytes."""
        return memory_size(self.cache_limit, "training.cache_limit")

    def build_optimizer(
        self, parameters: Iterable[nn.Parameter], factor: float = 1.0, progress: float = 0.0
    ) -> torch.optim.Optimizer:
        """A new optimiser with the learning rate times `factor`, after this fraction of a stage's rounds.

        Adam is fused where torch supports it. Restored moments must then have the memory layout of their
        parameter.
        """
        parameters, rate = list(parameters), self.learning_rate * factor
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * progress))
        if self.optimizer == "adam":
            fused = all(parameter.device.type in FUSED_ADAM_DEVICES for parameter in parameters)
            return torch.optim.Adam(
                parameters, rate, weight_decay=self.weight_decay, fused=fused, foreach=not fused
            )
        momentum, decay = self.sgd_momentum, self.weight_decay
        if self.optimizer == "rmsprop":
            return torch.optim.RMSprop(parameters, rate, RMSPROP_DECAY, weight_decay=decay, foreach=True)
        return torch.optim.SGD(parameters, rate, momentum=momentum, weight_decay=decay, foreach=True)


class Step(NamedTuple):
    """One step of the optimiser, reported for progress bars."""

    client: int
    loss: float
    samples: int


class DivergedError(ArithmeticError):
    """The loss is infinite or nan."""


def train(
    net: Network,
    stage: Stage,
    batches: Iterable[tuple[Tensor, ...] | Batch],
    optimizer: torch.optim.Optimizer,
    chunks: Chunks | None = None,
) -> Iterator[float]:
    """Do one optimiser step per batch, in chunks if `chunks` is given; yields the losses."""
    for batch in batches:
        optimizer.zero_grad()
        if chunks is None:
            loss, outputs = _backward(net, stage, batch if isinstance(batch, tuple) else batch[:])
        else:
            loss, outputs = chunks(net, stage, StoredBatch(*batch) if isinstance(batch, tuple) else batch)
        with timed("optimiser"):
            optimizer.step()
        with timed("after step"):
            stage.after_step(net, outputs)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"The loss became {value}: lower training.learning_rate.")
        yield value


def _backward(net: Network, stage: Stage, seen: tuple[Tensor, ...]) -> Result:
    with timed("forward"):
        outputs = stage.outputs(net, *seen)
    with timed("loss"):
        loss = stage.loss(outputs)
    with timed("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    return Result(loss, outputs)


def trainable(net: Network, stage: Stage) -> list[nn.Parameter]:
    """Set the network up for a stage and return the parameters that it trains; all others need no gradient.

    Frozen parts are set to eval mode, so that BatchNorm uses running statistics (D13); a target network
    stays in training mode (D12).
    """
    net.train()
    net.requires_grad_(False)
    for part in stage.frozen:
        net.get_submodule(part).eval()
    for part in stage.trained:
        net.get_submodule(part).requires_grad_(True)
    return [parameter for parameter in net.parameters() if parameter.requires_grad]
