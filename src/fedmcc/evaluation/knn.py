"""k-nearest-neighbour accuracy: how well features separate the classes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor
from torch.nn.functional import normalize

from fedmcc.errors import InputError
from fedmcc.evaluation.options import KNN_NEIGHBOURS

Rows = Float32[np.ndarray, "n d"]
Labels = Int[np.ndarray, " n"]

BLOCK_ROWS = 1024  # compared with all others at once, to limit memory


@dataclass(frozen=True)
class WeightedKNN:
    """Vote of the nearest images by cosine similarity s, each with weight exp(s / temperature)."""

    neighbours: int = KNN_NEIGHBOURS  # all training images if there are fewer
    temperature: float = 0.1

    def accuracy(
        self,
        train_features: Float32[np.ndarray, "n d"],
        train_labels: Int[np.ndarray, " n"],
        test_features: Float32[np.ndarray, "m d"],
        test_labels: Int[np.ndarray, " m"],
    ) -> float:
        """Share of test images whose label wins the vote of the training images."""
        train_features, train_labels = _labelled(train_features, train_labels, minimum=1)
        test_features, test_labels = _labelled(test_features, test_labels, minimum=1)
        similarities = _similarities(test_features, train_features)
        return self._accuracy(similarities, train_labels, test_labels)

    def leave_one_out(
        self, features: Rows, labels: Labels, max_queries: int | None = None, seed: int = 0
    ) -> float:
        """Share of images whose label wins the vote of all other images.

        With `max_queries`, only a random sample of that many images is classified; all images vote.
        """
        features, labels = _labelled(features, labels, minimum=2)
        queries = np.arange(len(labels))
        if max_queries is not None and max_queries < len(labels):
            queries = np.sort(np.random.default_rng(seed).choice(queries, max_queries, replace=False))
        similarities = _without_self(_similarities(features[queries], features), queries)
        return self._accuracy(similarities, labels, labels[queries])

    def _accuracy(
        self, similarities: Iterator[Tensor], voters: Labels, truth: Int[np.ndarray, " m"]
    ) -> float:
        classes, votes_for = np.unique(voters, return_inverse=True)
        winners = [self._winners(block, torch.from_numpy(votes_for), len(classes)) for block in similarities]
        return float(np.mean(classes[torch.cat(winners).numpy()] == truth))

    def _winners(
        self, similarities: Float[Tensor, "m n"], voters: Int64[Tensor, " n"], classes: int
    ) -> Int64[Tensor, " m"]:
        nearest, indices = similarities.topk(min(self.neighbours, len(voters)), dim=1)
        # Relative to the nearest image: the winner is the same, and low temperatures do not overflow.
        weights = ((nearest - nearest[:, :1]) / self.temperature).exp()
        return weights.new_zeros(len(weights), classes).scatter_add(1, voters[indices], weights).argmax(dim=1)


def _similarities(rows: Rows, others: Float32[np.ndarray, "m d"]) -> Iterator[Float[Tensor, "b m"]]:
    against = normalize(torch.from_numpy(others)).T
    for start in range(0, len(rows), BLOCK_ROWS):
        yield normalize(torch.from_numpy(rows[start : start + BLOCK_ROWS])) @ against


def _without_self(
    similarities: Iterator[Tensor], queries: Int64[np.ndarray, " m"]
) -> Iterator[Float[Tensor, "b n"]]:
    """Set the similarity of each image to itself to -inf, so that its own vote has weight 0."""
    own = torch.from_numpy(queries)
    for block in similarities:
        block[torch.arange(len(block)), own[: len(block)]] = -torch.inf
        own = own[len(block) :]
        yield block


def _labelled(
    features: Rows, labels: Labels, minimum: int
) -> tuple[Float32[np.ndarray, "labelled d"], Int[np.ndarray, " labelled"]]:
    rows = labels >= 0
    if rows.sum() < minimum:
        raise InputError(
            f"kNN needs at least {minimum} labelled images, but there are {rows.sum()}: add labels."
        )
    return features[rows], labels[rows]
