"""The largest chunk that fits a memory limit, found by measuring."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fedmcc.chunked import Pair, backward
from fedmcc.errors import InputError
from fedmcc.memory import in_use, peak
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.training import trainable

FEWEST = 3  # images of a chunk; BatchNorm needs some
MOMENTS = 2  # numbers that an optimiser keeps of a parameter, at most
COPIES = 3  # of the outputs of a batch: themselves, their gradient, what the loss makes of them
MARGIN = 1.15  # what convolutions need beside their tensors, measured with benchmarks/memory.py


def largest_chunk(net: Network, stages: Iterable[Stage], pair: Pair, limit: int) -> int:
    """As many images as a step of every stage may have in memory at once; the network is changed by it."""
    free = limit - in_use(next(net.parameters()).device)
    return min(_Fitting(net, stage, pair, limit, free).largest() for stage in stages if stage.trained)


@dataclass(frozen=True, eq=False)
class _Fitting:
    net: Network
    stage: Stage
    pair: Pair
    limit: int
    free: int  # bytes

    def largest(self) -> int:
        """By a straight line through two small chunks; then that chunk is measured, until one fits."""
        few, more = self._bytes(FEWEST), self._bytes(2 * FEWEST)
        each = max(1.0, (more - few) / FEWEST)
        if few > self.free:
            raise self._refusal(few)
        chunk = min(len(self.pair), FEWEST + int((self.free - few) / each))
        while chunk > FEWEST and (needed := self._bytes(chunk)) > self.free:
            chunk = max(FEWEST, chunk - 1 - int((needed - self.free) / each))
        return chunk

    def _bytes(self, chunk: int) -> float:
        """What a step in such chunks needs, from one chunk alone and the size of its outputs."""
        parameters = trainable(self.net, self.stage)
        self.net.zero_grad()
        device = parameters[0].device
        part = _Part(self.pair, min(chunk, len(self.pair)))
        outputs: list[Tensor] = []

        def step() -> None:
            outputs.extend(backward(self.net, self.stage, part, chunk).outputs)

        measured = peak(step, device)
        row = sum(output[0].nbytes for output in outputs)
        kept = MOMENTS * sum(parameter.nbytes for parameter in parameters)
        return MARGIN * measured + kept + COPIES * row * len(self.pair)

    def _refusal(self, needed: float) -> InputError:
        megabytes = (self.limit - self.free + needed) / 2**20
        return InputError(
            f"training.memory_limit is {self.limit / 2**20:.0f} MB, but chunks of {FEWEST} images need about "
            f"{megabytes:.0f} MB in all: raise it, or choose a smaller encoder or batch_size."
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """The first images of a batch."""

    pair: Pair
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, Tensor]:
        return self.pair[slice(*rows.indices(self.count))]
