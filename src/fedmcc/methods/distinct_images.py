"""Which images of a client are different: copies of an image must not stand for several images.

What a client sends stands for at least `smallest` different images, and an image is not its own neighbour.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedmcc.networks.momentum import Network
from fedmcc.numerics.neighbours import with_nearest

Every = slice(None)


class DistinctImages(NamedTuple):
    """The first of all equal images, how often each of them is stored, and each image's place among them."""

    first: Int64[Tensor, " m"]
    copies: Int64[Tensor, " m"]
    place: Int64[Tensor, " n"]


class DistinctPoints(NamedTuple):
    """The points of different images, and how often each image is stored."""

    points: Float[np.ndarray, "m d"]
    copies: Int64[np.ndarray, " m"]


def distinct_images(
    net: Network, count: int, rows: slice | Int64[Tensor, " sample"] = Every
) -> DistinctImages:
    """Those among all images of the client that trains the network, or among some of its rows."""
    originals = torch.arange(count) if net.copy_of is None else net.copy_of
    _, first, place, copies = np.unique(
        originals[rows].numpy(), return_index=True, return_inverse=True, return_counts=True
    )
    return DistinctImages(torch.from_numpy(first), torch.from_numpy(copies), torch.from_numpy(place))


def distinct_points(net: Network, points: Float[Tensor, "n d"]) -> DistinctPoints:
    """The points of the client's different images."""
    first, copies, _ = distinct_images(net, len(points))
    return DistinctPoints(points[first.to(points.device)].cpu().numpy(), copies.numpy())


def are_first(net: Network, start: int, count: int) -> Bool[Tensor, " count"]:
    """Whether images from this number on are no copies of earlier ones."""
    own = torch.arange(start, start + count)
    return torch.ones(count, dtype=torch.bool) if net.copy_of is None else net.copy_of[own] == own


def nearest_images(
    points: Float[Tensor, "n d"], distinct: DistinctImages, count: int
) -> Int64[Tensor, "n candidates"]:
    """The number of each image, followed by those of its nearest different images; copies have equal rows."""
    first, place = distinct.first.to(points.device), distinct.place.to(points.device)
    return first[with_nearest(points[first], min(count, len(first) - 1))][place]
