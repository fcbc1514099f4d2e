"""The largest chunk that fits a memory limit, found by measuring."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.training.chunked import Pair, backward
from fedmcc.training.loop import Training, train, trainable
from fedmcc.training.memory import bytes_in_use, peak_bytes

FEWEST = 3  # images of a chunk; BatchNorm needs some
MORE = 16  # images that tell what each of them needs
MOMENTS = 2  # numbers that an optimiser keeps of a parameter, at most
NETWORKS = 3  # in a task, in a reply and in what a client remembers
COPIES = 3  # of the outputs of a batch: themselves, their gradient, what the loss makes of them
MARGIN = 1.15  # convolutions and the allocator take 6 % beside the tensors of convnet, others perhaps more


def largest_chunk(net: Network, stages: Iterable[Stage], pair: Pair, limit: int) -> int:
    """As many images as a step of every stage may have in memory at once; the network is changed by it."""
    training = [stage for stage in stages if stage.trained]
    for stage in training:
        _warm_up(net, stage, _Part(pair, min(FEWEST, len(pair))))
    free = limit - bytes_in_use(next(net.parameters()).device)
    return min(_Fitting(net, stage, pair, limit, free).largest() for stage in training)


def _warm_up(net: Network, stage: Stage, pair: Pair) -> None:
    """A step, after which all code is loaded and counts as in use: that is 100 MB and more."""
    optimizer = Training().build_optimizer(trainable(net, stage))
    for _ in train(net, stage, [pair], optimizer):
        net.zero_grad()


@dataclass(frozen=True, eq=False)
class _Fitting:
    net: Network
    stage: Stage
    pair: Pair
    limit: int
    free: int  # bytes

    def largest(self) -> int:
        """By a straight line through two small chunks: a large one would leave the process large."""
        few = self._bytes(FEWEST)
        if few > self.free:
            raise self._refusal(few)
        if len(self.pair) <= FEWEST:
            return len(self.pair)
        more = min(len(self.pair), MORE)
        each = max(1.0, (self._bytes(more) - few) / (more - FEWEST))
        return min(len(self.pair), FEWEST + int((self.free - few) / each))

    def _bytes(self, chunk: int) -> float:
        """What a step in such chunks needs, from one chunk alone and the size of its outputs."""
        parameters = trainable(self.net, self.stage)
        self.net.zero_grad()
        device = parameters[0].device
        part = _Part(self.pair, min(chunk, len(self.pair)))
        outputs: list[Tensor] = []

        def step() -> None:
            outputs.extend(backward(self.net, self.stage, part, chunk).outputs)

        measured = peak_bytes(step, device)
        row = sum(output[0].nbytes for output in outputs)
        kept = MOMENTS * sum(parameter.nbytes for parameter in parameters)
        kept += NETWORKS * sum(parameter.nbytes for parameter in self.net.parameters())
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
