"""BatchNorm's running statistics over a batch that comes in chunks: one update for all of them."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def uses_batch_statistics(net: nn.Module) -> bool:
    """Whether some layer normalises with the statistics of what it is given."""
    return any(
        isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        for layer in net.modules()
    )


@dataclass
class Moments:
    """Count, mean and sum of squared deviations per channel, chunk after chunk."""

    count: int
    mean: Tensor
    deviations: Tensor

    def add(self, other: "Moments") -> "Moments":
        """Those of both together (Chan et al. 1983)."""
        count, apart = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * (other.count / count),
            self.deviations + other.deviations + apart.square() * (self.count * other.count / count),
        )


@dataclass
class TrackedLayer:
    """A layer, its buffers and momentum as they were, and the moments of each call in a pass."""

    norm: _BatchNorm
    momentum: float | None
    buffers: dict[str, Tensor]
    calls: list[Moments] = field(default_factory=list)
    position: int = 0  # of the next call of this chunk


class RunningStatistics(AbstractContextManager["RunningStatistics"]):
    """Within it, chunks leave running statistics alone; at its end they are updated as by whole batches.

    After an error they are as they were before.
    """

    def __init__(self, net: nn.Module) -> None:
        self._layers = [
            TrackedLayer(norm, norm.momentum, {name: value.clone() for name, value in norm.named_buffers()})
            for norm in net.modules()
            if isinstance(norm, _BatchNorm) and norm.training and norm.track_running_stats
        ]
        self._hooks: list[Any] = []

    def __enter__(self) -> "RunningStatistics":
        for layer in self._layers:
            layer.norm.momentum = 1.0  # the buffers then hold the statistics of the last call
            self._hooks.append(layer.norm.register_forward_hook(self._reader(layer)))
        return self

    def next_chunk(self) -> None:
        """What follows belongs to the next chunk of the batch."""
        for layer in self._layers:
            layer.position = 0

    def rest(self) -> None:
        """What follows has been seen before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def __exit__(self, kind: object, *_: object) -> None:
        self.rest()
        for layer in self._layers:
            layer.norm.momentum = layer.momentum
            for name, value in layer.buffers.items():
                layer.norm.get_buffer(name).copy_(value)
            if kind is None:
                for moments in layer.calls:
                    _update(layer.norm, moments)

    @staticmethod
    def _reader(layer: TrackedLayer) -> Any:
        def read(norm: _BatchNorm, inputs: tuple[Tensor, ...], _: object) -> None:
            count = inputs[0].numel() // inputs[0].shape[1]
            assert norm.running_mean is not None
            assert norm.running_var is not None
            mean, variance = norm.running_mean.double(), norm.running_var.double()
            found = Moments(count, mean.clone(), variance * (count - 1))
            if layer.position == len(layer.calls):
                layer.calls.append(found)
            else:
                layer.calls[layer.position] = layer.calls[layer.position].add(found)
            layer.position += 1

        return read


def _update(norm: _BatchNorm, moments: Moments) -> None:
    """What a call with all of these values would have done."""
    assert norm.num_batches_tracked is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    variance = moments.deviations / (moments.count - 1)
    norm.running_mean.mul_(1 - share).add_(moments.mean.to(norm.running_mean), alpha=share)
    norm.running_var.mul_(1 - share).add_(variance.to(norm.running_var), alpha=share)
