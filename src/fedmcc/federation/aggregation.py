"""Rules that turn the clients' weights into the next global weights, selected by `federation.aggregation`.

Except for the coordinate-wise rules, each one gives a coefficient to every client, computed from lengths and
inner products of the clients' changes. Without an attack, the default grows with the number of clients, not
with its square. docs/robustness.md reports what each rule withstands.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_low

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fedmcc.errors import unknown
from fedmcc.numerics.state_dicts import (
    Average,
    State,
    in_blocks,
    is_running_statistic,
    mean,
    weighted_average,
)

CHANGE_LIMIT = 3.0  # of a tensor, as a multiple of the median over clients; honest ones rarely exceed it
OPPOSED = -0.1  # cosine to the other clients' changes; honest ones stay above it, even with disjoint classes
COUNTER_LIMIT = 2  # of the increase of a counter, as a multiple of the median
TRIMMED = 0.2  # fraction of the clients left out at each end of a coordinate
WEISZFELD_STEPS = 100
MIN_CLIENTS = 3  # with two, it is unknown which one is hostile

Matrix = Float64[Tensor, "n n"]
Vector = Float64[Tensor, " n"]


def guarded(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Weighted mean of limited changes, without the clients whose change opposes that of the others.

    A tensor's change is limited to a multiple of the median over clients. The result is bit-identical to the
    mean if nothing exceeds the limit and nobody opposes the others.
    """
    if len(states) < MIN_CLIENTS:
        return mean(states, weights, sent)
    squares = squared_lengths(states, sent)
    factors = {name: _limiting_factors(square, CHANGE_LIMIT) for name, square in squares.items()}
    kept, trained = list(range(len(states))), [name for name in squares if not is_running_statistic(name)]
    if trained and min(_cosines(states, sent, {n: (squares[n], factors[n]) for n in trained})) < OPPOSED:
        products = inner_products(states, sent, trained)
        kept = agreeing(_total({n: p * torch.outer(factors[n], factors[n]) for n, p in products.items()}))
    return _combine(
        [states[k] for k in kept],
        [weights[k] for k in kept],
        sent,
        {name: factor[kept] for name, factor in factors.items()},
    )


def clipped(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Weighted mean of changes whose Euclidean norm is limited to the median norm."""
    if len(states) < MIN_CLIENTS:
        return mean(states, weights, sent)
    factors = _limiting_factors(_total(squared_lengths(states, sent)), 1.0)
    return _combine(states, weights, sent, dict.fromkeys(sent, factors))


def krum(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Multi-Krum (Blanchard et al. 2017): weighted mean of the clients that are closest to the others.

    Of n clients, (n - 3) / 2 may be hostile, rounded down; as many are left out.
    """
    hostile = max(0, (len(states) - 3) // 2)
    product = _total(inner_products(states, sent, _floating(states[0])))
    square = product.diagonal()
    distances = (square[:, None] + square - 2 * product).fill_diagonal_(torch.inf)
    nearest = distances.sort(dim=1).values[:, : max(1, len(states) - hostile - 2)]
    kept = sorted(nearest.sum(dim=1).argsort(stable=True)[: len(states) - hostile].tolist())
    return _combine([states[k] for k in kept], [weights[k] for k in kept], sent, {})


def geometric(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Geometric median: the point with the least weighted sum of distances, by Weiszfeld's iteration."""
    product = _total(inner_products(states, sent, _floating(states[0])))
    given = torch.tensor(weights, dtype=torch.float64)
    shares = torch.zeros_like(given)  # from the sent weights: a huge change must not enter the first step
    smallest = max(1e-9 * median_low(product.diagonal().sqrt().tolist()), 1e-30)
    for _ in range(WEISZFELD_STEPS):
        along = product @ shares
        square = product.diagonal() - 2 * along + shares @ along
        shares = given / square.clamp_min(0).sqrt().clamp_min(smallest)
        shares = shares / shares.sum()
    return _combine(states, shares.tolist(), sent, {})


def median(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Median of every coordinate; all clients have equal weight."""
    return _coordinatewise(states, sent, (len(states) - 1) // 2)


def trimmed(states: Sequence[State], weights: Sequence[float], sent: State) -> State:
    """Mean of every coordinate without its largest and smallest fifth; all clients have equal weight."""
    count = len(states)
    trim = max(1, int(TRIMMED * count)) if count >= MIN_CLIENTS else 0
    return _coordinatewise(states, sent, trim)


AGGREGATIONS: dict[str, Average] = {
    "mean": mean,
    "guarded": guarded,
    "clipped": clipped,
    "median": median,
    "trimmed": trimmed,
    "krum": krum,
    "geometric": geometric,
}
DEFAULT = "guarded"


def rule(name: str) -> Average:
    """The rule of this name."""
    if name not in AGGREGATIONS:
        raise unknown("aggregation", name, AGGREGATIONS)
    return AGGREGATIONS[name]


def squared_lengths(states: Sequence[State], sent: State) -> dict[str, Vector]:
    """For each floating-point tensor, the squared length of each client's change from the sent weights."""
    return {
        name: torch.tensor(
            [_squared_distance(state[name], sent[name]) for state in states], dtype=torch.float64
        )
        for name in _floating(states[0])
    }


def inner_products(states: Sequence[State], sent: State, names: Iterable[str]) -> dict[str, Matrix]:
    """For each of these tensors, the inner products of the clients' changes from the sent weights."""
    return {name: _inner_products([state[name] for state in states], sent[name]) for name in names}


def agreeing(product: Matrix) -> list[int]:
    """The clients left after those whose change opposes the sum of the others' directions are left out.

    The one with the lowest cosine goes first, then all are compared again; a majority always stays.
    """
    length = product.diagonal().clamp_min(1e-300).sqrt()
    cosines = product / torch.outer(length, length)
    kept, along = torch.ones(len(product), dtype=torch.bool), cosines.sum(dim=1)
    for _ in range((len(product) - 1) // 2):
        found = _cosines_to_others(along, cosines.diagonal(), along[kept].sum()).where(kept, torch.inf)
        worst = int(found.numpy().argmin())
        if found[worst] >= OPPOSED:
            break
        kept[worst] = False
        along = along - cosines[:, worst]
    remaining: list[int] = kept.nonzero()[:, 0].tolist()
    return remaining


def _cosines_to_others(along: Vector, own: Vector, total: Tensor) -> Vector:
    """Cosine of each direction d to s - d, the sum of the others, from d·s, d·d and s·s."""
    return (along - own) / (total - 2 * along + own).clamp_min(1e-12).sqrt()


def _inner_products(values: Sequence[Tensor], sent: Tensor) -> Matrix:
    total = torch.zeros(len(values), len(values), dtype=torch.float64, device=sent.device)
    for origin, *parts in in_blocks(sent, *values):
        changes = torch.stack([part.double() - origin for part in parts]).reshape(len(parts), -1)
        total += changes @ changes.T
    return total.cpu()


def _cosines(
    states: Sequence[State], sent: State, limited: Mapping[str, tuple[Vector, Vector]]
) -> list[float]:
    """Cosine of each client's change to the sum of the others' directions, in one pass over the states.

    `limited` has the tensors that count, with the squared lengths of their changes and limiting factors.
    """
    squares = {name: square * factor**2 for name, (square, factor) in limited.items()}
    lengths = _total(squares).clamp_min(1e-300).sqrt()
    along, own = torch.zeros_like(lengths), _total(squares) / lengths**2  # d·s and d·d
    for name, (_, factor) in limited.items():
        along += _along_sum([state[name] for state in states], sent[name], factor / lengths)
    cosines: list[float] = _cosines_to_others(along, own, along.sum()).tolist()
    return cosines


def _squared_distance(value: Tensor, sent: Tensor) -> float:
    return sum(float((part.double() - origin).square().sum()) for origin, part in in_blocks(sent, value))


def _along_sum(values: Sequence[Tensor], sent: Tensor, coefficients: Vector) -> Vector:
    """Inner product of each client's change with the sum of all changes, both multiplied by coefficients."""
    along = torch.zeros_like(coefficients)
    for origin, *parts in in_blocks(sent, *values):
        total = origin.double() * -coefficients.sum()
        for part, coefficient in zip(parts, coefficients.tolist(), strict=True):
            total.add_(part, alpha=coefficient)
        found = [((part.double() - origin) * total).sum() for part in parts]
        along += torch.stack(found).cpu() * coefficients
    return along


def _floating(state: State) -> list[str]:
    return [name for name, value in state.items() if value.is_floating_point()]


def _total(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(parts.values())).sum(dim=0)


def _limiting_factors(squares: Vector, multiple: float) -> Vector:
    """Factors that shorten each client's change to a multiple of the median length; 1 if it is shorter."""
    lengths = squares.sqrt()
    limit = multiple * median_low(lengths.tolist())
    return torch.where(lengths > limit, limit / lengths, 1.0)


def _combine(
    states: Sequence[State], weights: Sequence[float], sent: State, factors: Mapping[str, Vector]
) -> State:
    """Weighted mean of the changes, each multiplied by its client's factor, added to the sent weights."""
    unchanged = torch.ones(len(states), dtype=torch.float64)
    return {
        name: _weighted(
            name, [state[name] for state in states], weights, sent[name], factors.get(name, unchanged)
        )
        for name in states[0]
    }


def _weighted(
    name: str, values: Sequence[Tensor], weights: Sequence[float], sent: Tensor, factors: Vector
) -> Tensor:
    if not sent.is_floating_point():
        return _counter(values, sent)
    scaled = [weight * factor for weight, factor in zip(weights, factors.tolist(), strict=True)]
    rest = sum(weights) - sum(scaled)  # exactly 0 if nothing is limited: then it is the plain mean
    states = [{name: value} for value in (values if rest == 0 else [*values, sent])]
    return _valid(name, weighted_average(states, scaled if rest == 0 else [*scaled, rest])[name])


def _coordinatewise(states: Sequence[State], sent: State, trim: int) -> State:
    """Mean of every coordinate without the `trim` largest and smallest values."""

    def combine(ordered: Tensor) -> Tensor:
        return ordered[trim : len(states) - trim].mean(dim=0)

    return {
        name: _valid(name, _sorted_blocks([state[name] for state in states], combine))
        if sent[name].is_floating_point()
        else _counter([state[name] for state in states], sent[name])
        for name in states[0]
    }


def _sorted_blocks(values: Sequence[Tensor], combine: Callable[[Tensor], Tensor]) -> Tensor:
    result = torch.empty_like(values[0])
    for block, *parts in in_blocks(result, *values):
        ordered = np.sort(
            torch.stack(parts).double().cpu().numpy(), axis=0
        )  # several times faster than torch
        block.copy_(combine(torch.from_numpy(ordered)))
    return result


def _counter(values: Sequence[Tensor], sent: Tensor) -> Tensor:
    """The largest counter (D11), whose increase is limited to a multiple of the median."""
    increases = torch.stack([value - sent for value in values]).sort(dim=0).values
    limit = COUNTER_LIMIT * increases[(len(values) - 1) // 2]
    return sent + torch.minimum(increases[-1], limit)


def _valid(name: str, value: Tensor) -> Tensor:
    """A variance below 0, which only hostile clients can cause, becomes 0."""
    return value.clamp_min_(0) if name.endswith("running_var") else value
