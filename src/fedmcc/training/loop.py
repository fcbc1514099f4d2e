"""The only training loop, the batches it takes, and the options that belong to it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmcc.data.base import Images
from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.training.chunked import Chunks, Made, Pair, Result
from fedmcc.training.memory import memory_size
from fedmcc.training.timing import timed
from fedmcc.training.torch_setup import Precision
from fedmcc.views import Views
from fedmcc.views.parameters import Parameters

FUSED = ("cpu", "cuda")  # devices on which Adam takes one pass over memory


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
    chunk: int | Literal["auto"] | None = None  # images in memory at once; auto: as many as fit; None: all
    memory_limit: str | None = None  # of a process or an accelerator, such as 2GB; for chunk = "auto"
    closed_form: bool = True  # of the loss's gradient when there are chunks; false: by autograd
    precision: Precision = "float32"  # of networks, never of losses; auto: bfloat16 on CUDA that has it
    compile: bool = (
        False  # encoders by torch.compile: minutes once, then faster steps where there is a compiler
    )
    cache_limit: str = (
        "1GB"  # for features that are kept of a frozen encoder; a client with more has fresh views
    )

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise InputError(f"training.batch_size is {self.batch_size}: contrast needs 2 images or more.")
        if not 0 < self.learning_rate < math.inf:  # nan is refused as well
            raise InputError(f"training.learning_rate is {self.learning_rate}: give a positive number.")
        for name in ("weight_decay", "sgd_momentum"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise InputError(f"training.{name} is {value}: give 0 or more.")
        if isinstance(self.chunk, int) and self.chunk < 1:
            raise InputError(f"training.chunk is {self.chunk}: give 1 image or more.")
        _ = self.cache_bytes  # says what is wrong
        if self.memory_limit is not None:
            memory_size(self.memory_limit, "training.memory_limit")
        elif self.chunk == "auto":
            raise InputError('training.chunk is auto: say what it must fit, such as memory_limit = "2GB".')

    def chunks(self, batch_size: int) -> Chunks | None:
        """How batches of this size are cut; None: not at all."""
        if self.chunk == "auto":
            raise InputError("training.chunk is auto: it is settled when a run is assembled; give a number.")
        if self.chunk is None or self.chunk >= batch_size:
            return None
        return Chunks(self.chunk, self.closed_form)

    @property
    def cache_bytes(self) -> int:
        """How much a process may keep of features."""
        return memory_size(self.cache_limit, "training.cache_limit")

    def build_optimizer(
        self, parameters: Iterable[nn.Parameter], pace: float = 1.0, passed: float = 0.0
    ) -> torch.optim.Optimizer:
        """A fresh optimiser for a stage of this pace, of which this share of the rounds has passed.

        Adam in one pass over memory wherever torch has that; what it is given must lie as its parameter does.
        """
        parameters, rate = list(parameters), self.learning_rate * pace
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * passed))
        if self.optimizer == "adam":
            fused = all(parameter.device.type in FUSED for parameter in parameters)
            return torch.optim.Adam(
                parameters, rate, weight_decay=self.weight_decay, fused=fused, foreach=not fused
            )
        momentum, decay = self.sgd_momentum, self.weight_decay
        return torch.optim.SGD(parameters, rate, momentum=momentum, weight_decay=decay, foreach=True)


class Step(NamedTuple):
    """One step of the optimiser, as a progress bar wants it."""

    client: int
    loss: float
    samples: int


class DivergedError(ArithmeticError):
    """The loss is no longer a number."""


def train(
    net: Network,
    stage: Stage,
    pairs: Iterable[tuple[Tensor, Tensor] | Pair],
    optimizer: torch.optim.Optimizer,
    chunks: Chunks | None = None,
) -> Iterator[float]:
    """One step for each pair of views of a batch, in chunks if need be; yields the losses."""
    for pair in pairs:
        optimizer.zero_grad()
        if chunks is None:
            loss, outputs = _backward(net, stage, *(pair if isinstance(pair, tuple) else pair[:]))
        else:
            loss, outputs = chunks(net, stage, Made(*pair) if isinstance(pair, tuple) else pair)
        with timed("optimiser"):
            optimizer.step()
        with timed("after step"):
            stage.after_step(net, outputs)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"The loss became {value}: lower training.learning_rate.")
        yield value


def _backward(net: Network, stage: Stage, a: Tensor, b: Tensor) -> Result:
    with timed("forward"):
        outputs = stage.outputs(net, a, b)
    with timed("loss"):
        loss = stage.loss(outputs)
    with timed("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    return Result(loss, outputs)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch whose views are drawn and not yet made: any rows of it, whenever they are asked for."""

    images: Images
    rows: NDArray[np.int64]
    views: Views
    parameters: tuple[Parameters, Parameters]
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, Tensor]:
        with timed("views"):
            images = moved(self.images[self.rows[rows]], self.device)
            a, b = (self.views.apply(images, parameters.take(rows)) for parameters in self.parameters)
            return a, b


def moved(images: Images, device: torch.device) -> Tensor:
    """Images on the device; a copy to CUDA overlaps with what it computes meanwhile."""
    tensor = torch.from_numpy(np.require(images, requirements=["C", "W"]))  # mapped ones are read-only
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def lazy_pairs(
    images: Images, views: Views, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[Drawn]:
    """One epoch in random order; the images that fill no batch sit it out."""
    for rows in shuffled(len(images), batch_size, generator):
        with timed("views"):
            parameters = views.draw(batch_size, generator), views.draw(batch_size, generator)
        yield Drawn(images, rows.numpy(), views, parameters, device)


def shuffled(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The rows of the batches of one epoch, in random order; those that fill no batch sit it out."""
    order = torch.randperm(count, generator=generator)
    for start in range(0, count - batch_size + 1, batch_size):
        yield order[start : start + batch_size]


def pairs_of_views(
    images: Images, views: Views, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same with the views made, two of every batch."""
    return (pair[:] for pair in lazy_pairs(images, views, batch_size, generator, device))


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
