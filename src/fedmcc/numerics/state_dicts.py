"""Arithmetic on states: flat dictionaries of tensors, as in `state_dict` and safetensors files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
# From the clients' weights, the numbers of images by which they count, and the sent weights to new weights.
Average = Callable[[Sequence[State], Sequence[float], State], State]

BLOCK_ELEMENTS = 2**16  # elements averaged at a time, few enough for the processor's cache


def select(state: Mapping[str, Tensor], parts: Iterable[str]) -> State:
    """Select the tensors of the named submodules: "online.encoder" selects "online.encoder.conv1.weight"."""
    parts = tuple(parts)
    return {name: value for name, value in state.items() if _belongs(name, parts)}


def add_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """Put `prefix` and a dot before every name."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def strip_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """Select the tensors under `prefix` and remove it from their names; the inverse of `add_prefix`."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def detached(state: Mapping[str, Tensor]) -> State:
    """Copy a state to the CPU; later training does not change the copy."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def copy_into(net: nn.Module, incoming: Mapping[str, Tensor]) -> None:
    """Copy the given tensors into a network and leave its other tensors unchanged.

    An unknown name or another shape is an error, raised before anything is copied.
    """
    current = net.state_dict()
    for name, value in incoming.items():
        if name not in current:
            raise KeyError(f"The network has no tensor named {name!r}.")
        if value.shape != current[name].shape:  # copy_ would broadcast it
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {tuple(current[name].shape)}.")
    for name, value in incoming.items():
        current[name].copy_(value)


def weighted_average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Sum of w_k state_k / sum of w_k, in float64; integer counters take their maximum (D11).

    The result depends on the order of the states in its last bits: callers sort them by client.
    """
    total = float(sum(weights))
    return {name: _average([state[name] for state in states], weights, total) for name in states[0]}


def mean(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """The average by |D_k| / |D|, the server's step of Algorithms 1 and 2."""
    return weighted_average(states, weights)


def is_running_statistic(name: str) -> bool:
    """Whether a tensor of this name is a running statistic of BatchNorm, which is measured, not trained."""
    return name.endswith(("running_mean", "running_var"))


def interpolate(first: Mapping[str, Tensor], second: Mapping[str, Tensor], share: float) -> State:
    """share * first + (1 - share) * second, in float64; integer counters take their maximum (D11).

    The result has the names of the first state.
    """
    return {name: _average([first[name], second[name]], [share, 1 - share], 1.0) for name in first}


def mean_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Euclidean distance between tensors of the same name, averaged over the names of the first state."""
    distances = [torch.dist(value.double(), second[name].double()).item() for name, value in first.items()]
    return sum(distances) / len(distances)


def equal_states(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same names and bit-identical tensors; they may be on different devices."""
    return first.keys() == second.keys() and all(
        value.equal(second[name].to(value.device)) for name, value in first.items()
    )


def size_in_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes that the elements of the tensors take, without any header or padding."""
    return sum(value.numel() * value.element_size() for value in state.values())


def in_blocks(*values: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Blocks of tensors of equal shape: views of a few rows of each, which fit into the processor's cache."""
    return zip(*map(_blocks, values), strict=True)


def _average(values: Sequence[Tensor], weights: Sequence[float], total: float) -> Tensor:
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(dim=0)
    average = torch.empty_like(values[0])
    for block, *parts in in_blocks(average, *values):
        weighted_sum = torch.zeros_like(block, dtype=torch.float64)
        for part, weight in zip(parts, weights, strict=True):
            weighted_sum.add_(part, alpha=weight / total)
        block.copy_(weighted_sum)
    return average


def _blocks(value: Tensor) -> tuple[Tensor, ...]:
    """Split a tensor into views of whole rows with about `BLOCK_ELEMENTS` elements each."""
    if not value.dim() or not value.numel():
        return (value,)
    return torch.split(value, max(1, BLOCK_ELEMENTS * len(value) // value.numel()))


def _belongs(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
