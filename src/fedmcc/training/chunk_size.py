"""The largest chunk that fits into a memory limit, determined by measurement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.training.chunked import Batch, backward
from fedmcc.training.loop import Training, train, trainable
from fedmcc.training.memory import bytes_in_use, peak_bytes

MIN_CHUNK = 3  # images; BatchNorm needs several
LARGER_CHUNK = 16  # images in the second measurement, which gives the memory per image
OPTIMIZER_VALUES = 2  # numbers that an optimiser stores per parameter, at most
NETWORK_COPIES = 3  # in the task, in the update and in the client's state
OUTPUT_COPIES = 3  # of a batch: the outputs, their gradient, and what the loss computes from them
MARGIN = 1.15  # convolutions and the allocator add 6 % to the tensors of convnet, perhaps more elsewhere


def largest_chunk(
    net: Network, stages: Iterable[Stage], draw: Callable[[Stage], Batch], limit: int
) -> int | None:
    """The largest number of images per chunk with which a step of every stage stays within the limit.

    `draw` prepares the network for a stage and returns a batch. Measuring changes the weights of the network.
    The result is None if no stage trains.
    """
    trained = [stage for stage in stages if stage.trained]
    for stage in trained:
        batch = draw(stage)
        _warm_up(net, stage, _FirstImages(batch, min(MIN_CHUNK, len(batch))))
    free = limit - bytes_in_use(next(net.parameters()).device)
    return min((_ChunkFit(net, stage, draw(stage), limit, free).largest() for stage in trained), default=None)


def _warm_up(net: Network, stage: Stage, batch: Batch) -> None:
    """Do one step, so that code loaded by it (100 MB and more) counts as memory in use."""
    optimizer = Training().build_optimizer(trainable(net, stage))
    for _ in train(net, stage, [batch], optimizer):
        net.zero_grad()


@dataclass(frozen=True, eq=False)
class _ChunkFit:
    net: Network
    stage: Stage
    batch: Batch
    limit: int
    free: int  # bytes

    def largest(self) -> int:
        """Extrapolate linearly from two small chunks; measuring a large one would enlarge the process."""
        smallest = self._bytes(MIN_CHUNK)
        if smallest > self.free:
            raise self._limit_error(smallest)
        if len(self.batch) <= MIN_CHUNK:
            return len(self.batch)
        larger = min(len(self.batch), LARGER_CHUNK)
        per_image = max(1.0, (self._bytes(larger) - smallest) / (larger - MIN_CHUNK))
        return min(len(self.batch), MIN_CHUNK + int((self.free - smallest) / per_image))

    def _bytes(self, chunk: int) -> float:
        """Memory of a step with this chunk size, from measuring one chunk and the size of its outputs."""
        parameters = trainable(self.net, self.stage)
        self.net.zero_grad()
        device = parameters[0].device
        part = _FirstImages(self.batch, min(chunk, len(self.batch)))
        outputs: list[Tensor] = []

        def step() -> None:
            outputs.extend(backward(self.net, self.stage, part, chunk).outputs)

        measured = peak_bytes(step, device)
        row = sum(output[0].nbytes for output in outputs)
        weights = OPTIMIZER_VALUES * sum(parameter.nbytes for parameter in parameters)
        weights += NETWORK_COPIES * sum(parameter.nbytes for parameter in self.net.parameters())
        return MARGIN * measured + weights + OUTPUT_COPIES * row * len(self.batch)

    def _limit_error(self, needed: float) -> InputError:
        megabytes = (self.limit - self.free + needed) / 2**20
        return InputError(
            f"training.memory_limit is {self.limit / 2**20:.0f} MB, but chunks of {MIN_CHUNK} images "
            f"need about {megabytes:.0f} MB in total: raise it, or choose a smaller encoder or batch_size."
        )


@dataclass(frozen=True, eq=False)
class _FirstImages:
    """The first images of a batch."""

    batch: Batch
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice, /) -> tuple[Tensor, ...]:
        return self.batch[slice(*rows.indices(self.count))]
