"""Running statistics of BatchNorm, updated once per batch that is processed in chunks."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def uses_batch_statistics(net: nn.Module) -> bool:
    """Whether any BatchNorm layer normalises its input by the statistics of that input."""
    return any(
        isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        for layer in net.modules()
    )


@dataclass
class Moments:
    """Count, mean and sum of squared deviations per channel."""

    count: int
    mean: Tensor
    deviations: Tensor

    def add(self, other: "Moments") -> "Moments":
        """Moments of both sets of values together (Chan et al. 1983)."""
        count, difference = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + difference * (other.count / count),
            self.deviations + other.deviations + difference.square() * (self.count * other.count / count),
        )


@dataclass
class TrackedLayer:
    """A layer, its original buffers and momentum, and the moments of each of its calls in a forward pass."""

    norm: _BatchNorm
    momentum: float | None
    buffers: dict[str, Tensor]
    calls: list[Moments] = field(default_factory=list)
    position: int = 0  # index of the next call in the current chunk


class RunningStatistics(AbstractContextManager["RunningStatistics"]):
    """Context in which chunks do not change running statistics; at its end they are updated once per batch.

    After an error, the statistics are restored to their values before the context.
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
            self._hooks.append(layer.norm.register_forward_hook(self._recorder(layer)))
        return self

    def next_chunk(self) -> None:
        """Start the next chunk of the batch."""
        for layer in self._layers:
            layer.position = 0

    def stop_recording(self) -> None:
        """Ignore later calls, which repeat chunks that were already recorded."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def __exit__(self, kind: object, *_: object) -> None:
        self.stop_recording()
        for layer in self._layers:
            layer.norm.momentum = layer.momentum
            for name, value in layer.buffers.items():
                layer.norm.get_buffer(name).copy_(value)
            if kind is None:
                for moments in layer.calls:
                    _update(layer.norm, moments)

    @staticmethod
    def _recorder(layer: TrackedLayer) -> Any:
        def record(norm: _BatchNorm, inputs: tuple[Tensor, ...], _: object) -> None:
            count = inputs[0].numel() // inputs[0].shape[1]
            assert norm.running_mean is not None
            assert norm.running_var is not None
            mean, variance = norm.running_mean.double(), norm.running_var.double()
            moments = Moments(count, mean.clone(), variance * (count - 1))
            if layer.position == len(layer.calls):
                layer.calls.append(moments)
            else:
                layer.calls[layer.position] = layer.calls[layer.position].add(moments)
            layer.position += 1

        return record


def _update(norm: _BatchNorm, moments: Moments) -> None:
    """Update the running statistics as one call with all of these values would."""
    assert norm.num_batches_tracked is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    variance = moments.deviations / (moments.count - 1)
    norm.running_mean.mul_(1 - share).add_(moments.mean.to(norm.running_mean), alpha=share)
    norm.running_var.mul_(1 - share).add_(variance.to(norm.running_var), alpha=share)
