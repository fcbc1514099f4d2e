"""Neighbours of rows: the nearest ones, the degrees of their graph, and random ones by label."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

MAX_ELEMENTS = 2**24  # distances computed at a time


def nearest(
    rows: Float[Tensor, "n d"], count: int
) -> tuple[Int64[Tensor, "n neighbours"], Float[Tensor, "n neighbours"]]:
    """Indices of the nearest other rows, nearest first, and their squared distances; at most n - 1.

    Of equal distances, the lower index comes first.
    """
    count = min(count, len(rows) - 1)
    if count < 1:
        return torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device), rows.new_empty(len(rows), 0)
    lengths, step = rows.square().sum(dim=1), max(1, MAX_ELEMENTS // len(rows))
    indices, distances = [], []
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        squared = (lengths[start : start + step, None] + lengths - 2 * block @ rows.T).clamp_min(0)
        own = torch.arange(len(block), device=rows.device)
        squared[own, start + own] = torch.inf
        found, values = _smallest(squared, count)
        indices.append(found)
        distances.append(values)
    return torch.cat(indices), torch.cat(distances)


def with_nearest(points: Float[Tensor, "n d"], count: int) -> Int64[Tensor, "n candidates"]:
    """The number of each row, followed by the numbers of its nearest other rows."""
    own = torch.arange(len(points), device=points.device)[:, None]
    return torch.cat([own, nearest(points, count)[0]], dim=1)


def _smallest(
    values: Float[Tensor, "n m"], count: int
) -> tuple[Int64[Tensor, "n smallest"], Float[Tensor, "n smallest"]]:
    """The first columns of a stable sort of each row: indices and values.

    `topk` chooses any of equal values: rows with more values up to the largest chosen one are sorted.
    """
    chosen = values.topk(count, dim=1, largest=False, sorted=False).indices.sort(dim=1).values
    smallest, order = values.gather(1, chosen).sort(dim=1, stable=True)
    indices = chosen.gather(1, order)
    ambiguous = (values <= smallest[:, -1:]).sum(dim=1) != count
    if ambiguous.any():
        ordered = values[ambiguous].sort(dim=1, stable=True)
        smallest[ambiguous], indices[ambiguous] = ordered.values[:, :count], ordered.indices[:, :count]
    return indices, smallest


def mean_of_rows(rows: Float[Tensor, "n d"], table: Int64[Tensor, "n neighbours"]) -> Float[Tensor, "n d"]:
    """For each line of the table, the mean of the rows that it names."""
    total = torch.zeros_like(rows)
    for column in table.T:  # one by one: all at once would take memory for n x neighbours x d numbers
        total += rows[column]
    return total / table.shape[1]


def degrees(neighbours: Int64[Tensor, "n k"]) -> Int64[Tensor, " n"]:
    """The number of edges of each row in the graph that joins rows if either is a neighbour of the other."""
    count = len(neighbours)
    own = torch.arange(count, device=neighbours.device)[:, None].expand_as(neighbours)
    both = torch.cat([own * count + neighbours, neighbours * count + own])
    edges: Tensor = torch.unique(both)
    return (edges // count).bincount(minlength=count)


def partners_by_label(labels: Int64[Tensor, " n"], candidates: int, seed: int) -> Int64[Tensor, "n 2 _"]:
    """For each row, other rows of its label and rows of other labels, drawn with replacement.

    A row alone with its label is its own partner; if there is one label, any rows are the others.
    """
    count, draw = len(labels), torch.Generator().manual_seed(seed)
    order, sizes = labels.argsort(stable=True), labels.bincount()
    size, start = sizes[labels, None], (sizes.cumsum(0) - sizes)[labels, None]
    place = torch.empty_like(order).scatter(0, order, torch.arange(count))[:, None]  # in `order`
    same, other = torch.rand(2, count, candidates, generator=draw, dtype=torch.float64)
    near = start + (same * (size - 1)).long()
    near = near + ((near >= place) & (size > 1))
    far = (other * torch.where(size < count, count - size, count)).long()
    far = far + torch.where((far >= start) & (size < count), size, 0)
    return order[torch.stack([near, far], dim=1)]
