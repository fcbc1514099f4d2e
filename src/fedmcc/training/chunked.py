"""The gradient of a batch larger than memory, in two passes over chunks of it.

The first pass keeps the outputs and no graph. The loss of all outputs has a gradient at each row, the
paper's alphas, which the second pass takes through the network, a chunk at a time.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmcc.errors import InputError
from fedmcc.losses import in_blocks
from fedmcc.methods.base import Stage
from fedmcc.networks.replay import Tape
from fedmcc.networks.running_statistics import RunningStatistics, uses_batch_statistics
from fedmcc.numerics.randomness import GlobalRandomState
from fedmcc.training.timing import timed

log = logging.getLogger(__name__)

CHUNKED_BATCHNORM = (
    "training.chunk is set and the network has BatchNorm: each chunk is normalised by itself, so that the "
    "gradient is that of a chunk-normalised network. For the gradient of whole batches set encoder.norm to "
    '"group", and method.norm where the method has it.'
)


@runtime_checkable
class Pair(Protocol):
    """Two views of a batch, made for any rows of it when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, Tensor]: ...


class Result(NamedTuple):
    """The loss of a whole batch, and its outputs; the gradients are in the parameters."""

    loss: Tensor
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Made:
    """A pair of views that are there already."""

    a: Tensor
    b: Tensor

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, Tensor]:
        return self.a[rows], self.b[rows]


def backward(net: nn.Module, stage: Stage, pair: Pair, chunk: int, closed_form: bool = True) -> Result:
    """Add the gradient of the stage's loss to the parameters' own, with the graph of one chunk at a time.

    It is exact but for BatchNorm in training, which normalises each chunk by itself (D17).
    """
    passes = _Passes(net, stage, pair, split(len(pair), chunk))
    _refuse_single_images(net, passes.chunks)
    with RunningStatistics(net) as statistics:
        kept = passes.first(statistics)
        loss, used = _turn_to_alphas(stage, kept, closed_form)
        statistics.rest()
        passes.second(kept, used)
    return Result(loss, kept.outputs)


def split(n: int, chunk: int) -> list[slice]:
    """As few chunks as possible, of sizes that differ by one at most, so that none has odd statistics."""
    count = -(-n // chunk)
    ends = [n * number // count for number in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass
class Chunks:
    """Chunked gradients whose chunk is halved when an accelerator's memory does not do."""

    chunk: int
    closed_form: bool = True

    def __call__(self, net: nn.Module, stage: Stage, pair: Pair) -> Result:
        """`backward`, as often as it takes to find a chunk that fits."""
        device = next(net.parameters()).device
        state = GlobalRandomState.of(device)
        while True:
            try:
                return backward(net, stage, pair, self.chunk, self.closed_form)
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise
            self.chunk = -(-self.chunk // 2)
            log.warning("Out of memory: training goes on in chunks of %d images.", self.chunk)
            net.zero_grad()
            state.restore()
            if device.type != "cpu":
                torch.get_device_module(device).empty_cache()


def normalises_by_chunk(net: nn.Module, frozen: Sequence[str] = ()) -> bool:
    """Whether chunks would be normalised by themselves: by BatchNorm outside of what is frozen."""
    still = {layer for part in frozen for layer in net.get_submodule(part).modules()}
    return any(isinstance(layer, _BatchNorm) and layer not in still for layer in net.modules())


@dataclass(eq=False)
class _Kept:
    """All outputs, which of them a gradient reaches, and what each chunk keeps for the second pass."""

    count: int
    outputs: tuple[Tensor, ...] = ()
    reached: list[bool] = field(default_factory=list)
    tapes: list[Tape] = field(default_factory=list)

    def add(self, part: tuple[Tensor, ...], rows: slice, tape: Tape) -> None:
        """Put the outputs of a chunk in their rows."""
        if not self.tapes:
            self.reached = [output.requires_grad for output in part]
            self.outputs = _like(part, [output.new_empty((self.count, *output.shape[1:])) for output in part])
        stored = [output[rows] for output in self.outputs]
        for place, output in zip(stored, part, strict=True):
            place.copy_(output.detach())
        tape.share(part, stored)
        self.tapes.append(tape)


@dataclass(frozen=True, eq=False)
class _Passes:
    net: nn.Module
    stage: Stage
    pair: Pair
    chunks: list[slice]

    def first(self, statistics: RunningStatistics) -> _Kept:
        """Every chunk to its outputs, without a graph."""
        kept = _Kept(len(self.pair))
        for rows in self.chunks:
            statistics.next_chunk()
            tape = Tape(next(self.net.parameters()).device)
            # The first chunk has a graph, which tells what a gradient reaches and is dropped.
            with timed("forward"), tape.recording(), torch.set_grad_enabled(not kept.tapes):
                part = self.stage.outputs(self.net, *self.pair[rows])
            kept.add(part, rows, tape)
            del part  # and with it the graph
        return kept

    def second(self, kept: _Kept, used: list[bool]) -> None:
        """Every chunk again, and its part of the gradient; outputs take back the place of their alphas."""
        for rows, tape in zip(self.chunks, kept.tapes, strict=True):
            with timed("forward"), tape.replay():
                part = self.stage.outputs(self.net, *self.pair[rows])
            pairs = zip(part, kept.outputs, used, strict=True)
            ends = [(output, alphas[rows]) for output, alphas, is_used in pairs if is_used]
            with timed("backward"):
                torch.autograd.backward([output for output, _ in ends], [alpha for _, alpha in ends])
            for output, alpha in ends:
                alpha.copy_(output.detach())
            del part, ends, output  # and with them the graph


def _turn_to_alphas(stage: Stage, kept: _Kept, closed_form: bool) -> tuple[Tensor, list[bool]]:
    """The loss, and which outputs are now its gradient: what grows with the batch is kept but once."""
    leaves = [
        output.detach().requires_grad_(reached)
        for output, reached in zip(kept.outputs, kept.reached, strict=True)
    ]
    with timed("loss"), in_blocks(closed_form):
        loss = stage.loss(_like(kept.outputs, leaves))
        loss.backward()  # type: ignore[no-untyped-call]
    for output, leaf in zip(kept.outputs, leaves, strict=True):
        if leaf.grad is not None:
            output.copy_(leaf.grad)
    return loss.detach(), [leaf.grad is not None for leaf in leaves]


def _refuse_single_images(net: nn.Module, chunks: list[slice]) -> None:
    smallest = min(rows.stop - rows.start for rows in chunks)
    if smallest < 2 and uses_batch_statistics(net):
        raise InputError(
            "A chunk of a single image has no batch statistics: "
            'set training.chunk to 3 or more, or encoder.norm and method.norm to "group".'
        )


def _like(example: tuple[Tensor, ...], tensors: Sequence[Tensor]) -> Any:
    """The tensors in a tuple of the example's kind."""
    make: Any = getattr(example, "_make", tuple)
    return make(tensors)
