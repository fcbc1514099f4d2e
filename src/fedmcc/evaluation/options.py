"""When and on what is scored: all of scoring that a process which scores nothing needs.

It spares sites scikit-learn and SciPy, whose imports take a third of the start of a process.
"""

from dataclasses import dataclass
from typing import Any

from fedmcc.errors import InputError

KNN_NEIGHBOURS = 200


@dataclass(frozen=True)
class Evaluation:
    """When and on what a run is scored."""

    every: int = 1  # rounds; the last one is always scored
    kmeans_every: int = 0  # rounds between k-means on features, which takes seconds; 0: only at the end
    split: str | None = None  # of the data set; None: the images trained on, as the literature does (D15)
    batch_size: int = 512
    at_server: bool = False  # of a federation of sites: score on the images of [data], which it must hold

    def __post_init__(self) -> None:
        if self.every < 1 or self.kmeans_every < 0 or self.batch_size < 1:
            raise InputError("evaluation.every and batch_size must be 1 or more, kmeans_every 0 or more.")


def nothing_scored(clusters: int) -> dict[str, Any]:
    """What `Scorer.final` would say, where there are no images to score."""
    return {
        "images": 0,
        "split": "none",
        "clusters": clusters,
        "scores": {},
        "knn": None,
        "label_free": {},
        "sizes": [],
        "warning": None,
    }
