"""The gradient of a batch that does not fit into memory, in two passes over chunks of the batch.

The first pass keeps the outputs without a graph. The gradient of the loss with respect to the outputs, the
paper's alphas, is then propagated through the network in the second pass, one chunk at a time.
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
    "training.chunk is set and the network has BatchNorm: each chunk is normalised separately, so that the "
    "gradient is that of a chunk-normalised network. For the gradient of whole batches set encoder.norm to "
    '"group", and method.norm if the method has this option.'
)


@runtime_checkable
class Batch(Protocol):
    """What a stage sees of a batch of images, computed on demand for any slice of its rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, ...]: ...


class Result(NamedTuple):
    """The loss and the outputs of a whole batch; the gradients are stored in the parameters."""

    loss: Tensor
    outputs: tuple[Tensor, ...]


class StoredBatch:
    """What a stage sees of a batch of images, already computed."""

    def __init__(self, *seen: Tensor) -> None:
        self.seen = seen

    def __len__(self) -> int:
        return len(self.seen[0])

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, ...]:
        return tuple(tensor[rows] for tensor in self.seen)


def backward(net: nn.Module, stage: Stage, batch: Batch, chunk: int, closed_form: bool = True) -> Result:
    """Add the gradient of the stage's loss to the parameters, with the graph of one chunk at a time.

    The gradient is exact except with BatchNorm in training mode, which normalises each chunk separately
    (D17).
    """
    passes = _Passes(net, stage, batch, split(len(batch), chunk))
    _require_batch_statistics(net, passes.chunks)
    with RunningStatistics(net) as statistics:
        stored = passes.first(statistics)
        loss, used = _replace_by_alphas(stage, stored, closed_form)
        statistics.stop_recording()
        passes.second(stored, used)
    return Result(loss, stored.outputs)


def split(n: int, chunk: int) -> list[slice]:
    """The smallest number of chunks, with sizes that differ by at most one, so that none is very small."""
    count = -(-n // chunk)
    ends = [n * number // count for number in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass
class Chunks:
    """Gradients in chunks, whose size is halved when an accelerator runs out of memory."""

    chunk: int
    closed_form: bool = True

    def __call__(self, net: nn.Module, stage: Stage, batch: Batch) -> Result:
        """Call `backward` with smaller and smaller chunks until one fits."""
        device = next(net.parameters()).device
        state = GlobalRandomState.of(device)
        while True:
            try:
                return backward(net, stage, batch, self.chunk, self.closed_form)
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise
            self.chunk = -(-self.chunk // 2)
            log.warning("Out of memory: training continues in chunks of %d images.", self.chunk)
            net.zero_grad()
            state.restore()
            if device.type != "cpu":
                torch.get_device_module(device).empty_cache()


def normalises_by_chunk(net: nn.Module, frozen: Sequence[str] = ()) -> bool:
    """Whether the network has BatchNorm outside its frozen parts, which normalises each chunk separately."""
    inactive = {layer for part in frozen for layer in net.get_submodule(part).modules()}
    return any(isinstance(layer, _BatchNorm) and layer not in inactive for layer in net.modules())


@dataclass(eq=False)
class _Stored:
    """The outputs of all chunks, which of them need a gradient, and a tape per chunk for the second pass."""

    count: int
    outputs: tuple[Tensor, ...] = ()
    needs_gradient: list[bool] = field(default_factory=list)
    tapes: list[Tape] = field(default_factory=list)

    def add(self, part: tuple[Tensor, ...], rows: slice, tape: Tape) -> None:
        """Copy the outputs of a chunk into their rows."""
        if not self.tapes:
            self.needs_gradient = [output.requires_grad for output in part]
            self.outputs = _like(part, [output.new_empty((self.count, *output.shape[1:])) for output in part])
        slices = [output[rows] for output in self.outputs]
        for target, output in zip(slices, part, strict=True):
            target.copy_(output.detach())
        tape.replace(part, slices)
        self.tapes.append(tape)


@dataclass(frozen=True, eq=False)
class _Passes:
    net: nn.Module
    stage: Stage
    batch: Batch
    chunks: list[slice]

    def first(self, statistics: RunningStatistics) -> _Stored:
        """Compute the outputs of every chunk, without a graph."""
        stored = _Stored(len(self.batch))
        for rows in self.chunks:
            statistics.next_chunk()
            tape = Tape(next(self.net.parameters()).device)
            # Only the first chunk gets a graph, to find out which outputs need a gradient.
            with timed("forward"), tape.recording(), torch.set_grad_enabled(not stored.tapes):
                part = self.stage.outputs(self.net, *self.batch[rows])
            stored.add(part, rows, tape)
            del part  # frees the graph
        return stored

    def second(self, stored: _Stored, used: list[bool]) -> None:
        """Propagate the alphas of every chunk through the network, and restore the outputs they replaced."""
        for rows, tape in zip(self.chunks, stored.tapes, strict=True):
            with timed("forward"), tape.replay():
                part = self.stage.outputs(self.net, *self.batch[rows])
            pairs = zip(part, stored.outputs, used, strict=True)
            ends = [(output, alphas[rows]) for output, alphas, is_used in pairs if is_used]
            with timed("backward"):
                torch.autograd.backward([output for output, _ in ends], [alpha for _, alpha in ends])
            for output, alpha in ends:
                alpha.copy_(output.detach())
            del part, ends, output  # frees the graph


def _replace_by_alphas(stage: Stage, stored: _Stored, closed_form: bool) -> tuple[Tensor, list[bool]]:
    """Compute the loss and overwrite outputs by their gradient, to save memory; returns which were."""
    leaves = [
        output.detach().requires_grad_(needed)
        for output, needed in zip(stored.outputs, stored.needs_gradient, strict=True)
    ]
    with timed("loss"), in_blocks(closed_form):
        loss = stage.loss(_like(stored.outputs, leaves))
        loss.backward()  # type: ignore[no-untyped-call]
    for output, leaf in zip(stored.outputs, leaves, strict=True):
        if leaf.grad is not None:
            output.copy_(leaf.grad)
    return loss.detach(), [leaf.grad is not None for leaf in leaves]


def _require_batch_statistics(net: nn.Module, chunks: list[slice]) -> None:
    smallest = min(rows.stop - rows.start for rows in chunks)
    if smallest < 2 and uses_batch_statistics(net):
        raise InputError(
            "A chunk of a single image has no batch statistics: "
            'set training.chunk to 3 or more, or encoder.norm and method.norm to "group".'
        )


def _like(example: tuple[Tensor, ...], tensors: Sequence[Tensor]) -> Any:
    """The tensors as a tuple of the example's type."""
    make: Any = getattr(example, "_make", tuple)
    return make(tensors)
