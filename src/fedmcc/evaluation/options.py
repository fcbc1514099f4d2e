"""Options of evaluation, and what a process needs that does not score.

Sites import this module alone: scikit-learn and SciPy would take a third of their start-up time.
"""

from dataclasses import dataclass
from typing import Any

from fedmcc.errors import InputError

KNN_NEIGHBOURS = 200
KNN_QUERIES = 2_000  # of a large set; the standard error of their accuracy is at most 1.1 %


@dataclass(frozen=True)
class Evaluation:
    """When and on which images a run is scored."""

    every: int = 1  # rounds; the last round of a stage is always scored
    kmeans_every: int = (
        0  # rounds between k-means on features, which takes seconds; 0: a stage's last round only
    )
    split: str | None = None  # of the data set; None: the training images, as in the literature (D15)
    batch_size: int = 512
    sample_above: int = 10_000  # images; kNN and k-means on pixels use a sample of larger sets; 0: all images
    at_server: bool = False  # with sites: score at the server, on the images of [data], which it must hold

    def __post_init__(self) -> None:
        if self.every < 1 or self.kmeans_every < 0 or self.batch_size < 1:
            raise InputError("evaluation.every and batch_size must be 1 or more, kmeans_every 0 or more.")
        if self.sample_above < 0:
            raise InputError(f"evaluation.sample_above is {self.sample_above}: give 0 or more.")

    def samples(self, images: int) -> bool:
        """Whether kNN and k-means on pixels use a sample of this number of images."""
        return 0 < self.sample_above < images


def empty_scores(clusters: int) -> dict[str, Any]:
    """What `Scorer.final` returns, for a run that has no images to score."""
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
