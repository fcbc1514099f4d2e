"""What is scored during a run and at its end, from one extraction each."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from fedmcc.data.base import Images, ImageSet
from fedmcc.evaluation.assignments import Assignment
from fedmcc.evaluation.clustering import ClusterScores, cluster_sizes, score
from fedmcc.evaluation.features import Extracted, UntilChanged, assign, encode
from fedmcc.evaluation.kmeans import Assigned, kmeans, raw_kmeans
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.label_free import collapsed, score_without_labels
from fedmcc.evaluation.options import Evaluation
from fedmcc.networks.momentum import Branch
from fedmcc.numerics.randomness import generator
from fedmcc.views import Views

ALIGNED = 500  # images of which two views are compared


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores branches on one set of images; labels are looked at nowhere else."""

    images: ImageSet
    views: Views
    clusters: int
    seed: int
    options: Evaluation
    known: UntilChanged = field(init=False, default_factory=UntilChanged)  # of these images alone

    def extract(self, branch: Branch) -> Extracted:
        """Features and assignments of all images, without augmentation."""
        features = self.known.get(branch.encoder, "features", lambda: self._encode(branch.encoder))
        return Extracted(features, assign(branch, features, self.options.batch_size))

    def round(self, branch: Branch, with_head: bool, with_kmeans: bool) -> dict[str, float]:
        """The scores of a row of metrics; where something is undefined its key is absent.

        A head that no stage has touched yet says nothing: leave it out.
        """
        extracted = self.extract(branch)
        if not with_head:
            extracted = extracted._replace(assignments=None)
        pairs = score_without_labels(extracted, self.seed, self._two_views(branch))._asdict()
        if extracted.assignments is not None:
            pairs |= _fields("", score(self.images.labels, extracted.assignments.argmax(axis=1)))
        if with_kmeans:
            pairs |= _fields("kmeans_", score(self.images.labels, self.kmeans(extracted, branch)))
        return {key: value for key, value in pairs.items() if value is not None}

    def final(self, branch: Branch, extracted: Extracted) -> dict[str, Any]:
        """Side by side: k-means on pixels, the head, k-means on features, kNN; and what needs no label."""
        images, labels = self.images, self.images.labels
        pixels = raw_kmeans(images.images, self.clusters, self.seed)
        found = {"pixels": pixels, "features": self.kmeans(extracted, branch)}
        if extracted.assignments is not None:
            found["head"] = extracted.assignments.argmax(axis=1)
        assigned = found.get("head", found["features"])
        scores = {name: _fields("", score(labels, clusters)) for name, clusters in found.items()}
        return {
            "images": len(images),
            "split": images.split,
            "clusters": self.clusters,
            "scores": scores,
            "knn": self._knn(extracted),
            "label_free": score_without_labels(extracted, self.seed, self._two_views(branch))._asdict(),
            "sizes": cluster_sizes(assigned, self.clusters).tolist(),
            "warning": collapsed(extracted.features, assigned, self.clusters),
        }

    def assign(self, extracted: Extracted, branch: Branch | None = None) -> Assignment:
        """What the run says of each image: its head's word, or k-means where there is no head."""
        if extracted.assignments is None:
            return Assignment(self.kmeans(extracted, branch), confidence=None)
        return Assignment.of_soft(extracted.assignments)

    def kmeans(self, extracted: Extracted, branch: Branch | None = None) -> Assigned:
        """k-means on features; on those that this branch gave `extract`, once."""

        def found() -> Assigned:
            return kmeans(extracted.features, self.clusters, self.seed)

        labels: Assigned = found() if branch is None else self.known.get(branch.encoder, "k-means", found)
        return labels

    def _encode(self, encoder: nn.Module) -> Any:
        return encode(encoder, self.images.images, self.views.plain, self.options.batch_size)

    def _knn(self, extracted: Extracted) -> float | None:
        labels = self.images.labels
        if labels is None or (labels >= 0).sum() < 2:
            return None
        return WeightedKNN().leave_one_out(extracted.features, labels)

    def _two_views(self, branch: Branch) -> tuple[Any, Any]:
        views: tuple[Any, Any] = self.known.get(branch.encoder, "views", lambda: self._views(branch.encoder))
        return views

    def _views(self, encoder: nn.Module) -> tuple[Any, Any]:
        count = len(self.images)
        rows = np.linspace(0, count - 1, min(ALIGNED, count)).round().astype(int)  # files are sorted by class
        some: Images = self.images.images[rows]
        draw = generator(self.seed, "alignment")
        a, b = (encode(encoder, some, lambda batch: self.views(batch, draw)) for _ in range(2))
        return a, b


def _fields(prefix: str, scores: ClusterScores | None) -> dict[str, float]:
    return {} if scores is None else {f"{prefix}{key}": value for key, value in scores._asdict().items()}
