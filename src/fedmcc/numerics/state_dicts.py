"""Arithmetic on states: flat dictionaries of tensors, as `state_dict` and safetensors speak them."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

BLOCK_ELEMENTS = 2**16  # numbers that are summed at once


def select(state: Mapping[str, Tensor], parts: Iterable[str]) -> State:
    """What belongs to the named submodules: "online.encoder" takes "online.encoder.conv1.weight"."""
    parts = tuple(parts)
    return {name: value for name, value in state.items() if _belongs(name, parts)}


def add_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The state one level down, under `prefix`."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def strip_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The part under `prefix`, one level up: undoes `prefixed`."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def detached(state: Mapping[str, Tensor]) -> State:
    """A copy on the CPU that further training leaves alone."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def copy_into(net: nn.Module, incoming: Mapping[str, Tensor]) -> None:
    """Overwrite the named tensors of a network and leave the others; an unexpected name is an error."""
    own = net.state_dict()
    for name, value in incoming.items():
        if name not in own:
            raise KeyError(f"The network has no tensor named {name!r}.")
        if value.shape != own[name].shape:  # a copy would stretch it
            raise ValueError(f"{name} is {tuple(value.shape)}, not {tuple(own[name].shape)}.")
    for name, value in incoming.items():
        own[name].copy_(value)


def weighted_average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Sum of w_k state_k / sum of w_k, in float64; integer counters take their maximum (D11).

    The result depends on the order of the states in its last bits: callers sort them by client.
    """
    total = float(sum(weights))
    return {name: _average([state[name] for state in states], weights, total) for name in states[0]}


def interpolate(a: Mapping[str, Tensor], b: Mapping[str, Tensor], share: float) -> State:
    """share a + (1 - share) b, in float64; integer counters take their maximum (D11)."""
    return {name: _average([a[name], b[name]], [share, 1 - share], 1.0) for name in a}


def mean_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The mean over the tensors of a of their Euclidean distance to those of b."""
    distances = [torch.dist(value.double(), b[name].double()).item() for name, value in a.items()]
    return sum(distances) / len(distances)


def equal_states(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same tensors, to the bit, wherever they are."""
    return a.keys() == b.keys() and all(value.equal(b[name].to(value.device)) for name, value in a.items())


def size_in_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors' numbers, without any packing."""
    return sum(value.numel() * value.element_size() for value in state.values())


def _average(values: Sequence[Tensor], weights: Sequence[float], total: float) -> Tensor:
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(dim=0)
    average = torch.empty_like(values[0])
    for block, *parts in zip(*map(_blocks, (average, *values)), strict=True):
        sum_ = torch.zeros_like(block, dtype=torch.float64)
        for part, weight in zip(parts, weights, strict=True):
            sum_.add_(part, alpha=weight / total)
        block.copy_(sum_)
    return average


def _blocks(value: Tensor) -> tuple[Tensor, ...]:
    """Views of some rows each: a sum of so many numbers stays in the processor's cache."""
    if not value.dim() or not value.numel():
        return (value,)
    return torch.split(value, max(1, BLOCK_ELEMENTS * len(value) // value.numel()))


def _belongs(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
