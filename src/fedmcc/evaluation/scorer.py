"""The scores of a round and of a finished run, each computed from one extraction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from fedmcc.data.base import Images, ImageSet
from fedmcc.evaluation.assignments import Assignment, fold
from fedmcc.evaluation.clustering import ClusterScores, cluster_sizes, score
from fedmcc.evaluation.features import EncoderCache, Extracted, assign, encode
from fedmcc.evaluation.kmeans import Assigned, images_at_once, kmeans, raw_kmeans
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.label_free import collapse_warning, score_without_labels
from fedmcc.evaluation.options import KNN_QUERIES, Evaluation
from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.momentum import Branch
from fedmcc.numerics.randomness import generator
from fedmcc.training.feature_files import feature_file
from fedmcc.views import Views

MAX_ALIGNED_IMAGES = 500  # images of which two views are compared


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores branches on one set of images."""

    images: ImageSet
    views: Views
    clusters: int
    seed: int
    options: Evaluation
    merged: Mapping[int, int] = field(default_factory=dict)  # clusters that the user merged into others
    cache: EncoderCache = field(init=False, default_factory=EncoderCache)  # for these images only

    def extract(self, branch: Branch) -> Extracted:
        """Features and assignments of all images, without augmentation."""
        features = self.cache.get(branch.encoder, "features", lambda: self._encode(branch.encoder))
        assignments = assign(branch, features, self.options.batch_size)
        return Extracted(features, None if assignments is None else fold(assignments, self.merged))

    def round(self, branch: Branch, with_head: bool, with_kmeans: bool) -> dict[str, float]:
        """The scores of a row of metrics; undefined scores are left out.

        Pass `with_head=False` until a stage has trained the cluster head.
        """
        extracted = self.extract(branch)
        if not with_head:
            extracted = extracted._replace(assignments=None)
        scores = score_without_labels(extracted, self.seed, self._two_views(branch))._asdict()
        if extracted.assignments is not None:
            scores |= _fields("", score(self.images.labels, extracted.assignments.argmax(axis=1)))
        if with_kmeans:
            scores |= _fields("kmeans_", score(self.images.labels, self.kmeans(extracted, branch)))
        return {key: value for key, value in scores.items() if value is not None}

    def final(self, branch: Branch, extracted: Extracted) -> dict[str, Any]:
        """The final scores: of the head, of k-means on pixels and features, of kNN, and without labels."""
        images, labels = self.images, self.images.labels
        pixels = raw_kmeans(images.images, self.clusters, self.seed, self.options.sample_above or None)
        assignments = {"pixels": pixels, "features": self.kmeans(extracted, branch)}
        if extracted.assignments is not None:
            assignments["head"] = extracted.assignments.argmax(axis=1)
        assigned = assignments.get("head", assignments["features"])
        scores = {name: _fields("", score(labels, clusters)) for name, clusters in assignments.items()}
        return self._sample_sizes() | {
            "images": len(images),
            "split": images.split,
            "clusters": self.clusters,
            "scores": scores,
            "knn": self._knn(extracted),
            "label_free": score_without_labels(extracted, self.seed, self._two_views(branch))._asdict(),
            "sizes": cluster_sizes(assigned, self.clusters).tolist(),
            "warning": collapse_warning(extracted.features, assigned, self.clusters),
        }

    def assign(self, extracted: Extracted, branch: Branch | None = None) -> Assignment:
        """Cluster of each image by the head, or by k-means if there is no head."""
        if extracted.assignments is None:
            return Assignment(self.kmeans(extracted, branch), confidence=None)
        return Assignment.from_soft(extracted.assignments)

    def kmeans(self, extracted: Extracted, branch: Branch | None = None) -> Assigned:
        """k-means on features; cached if `branch` is given, which must be the one that was extracted."""

        def compute() -> Assigned:
            return kmeans(extracted.features, self.clusters, self.seed)

        if branch is None:
            return compute()
        assigned: Assigned = self.cache.get(branch.encoder, "k-means", compute)
        return assigned

    def _encode(self, encoder: nn.Module) -> Any:
        stored = feature_file(encoder, self.images.images, self.views)
        if stored is not None:
            return stored.array()
        return encode(encoder, self.images.images, self.views.plain, self.options.batch_size)

    def _knn(self, extracted: Extracted) -> float | None:
        labels = self.images.labels
        if labels is None or (labels >= 0).sum() < 2:
            return None
        queries = KNN_QUERIES if self.options.samples(len(self.images)) else None
        return WeightedKNN().leave_one_out(extracted.features, labels, queries, self.seed)

    def _sample_sizes(self) -> dict[str, dict[str, int]]:
        """How many images the scores come from that are computed on a sample; nothing if none is."""
        if not self.options.samples(len(self.images)):
            return {}
        labels = self.images.labels
        known = 0 if labels is None else int((labels >= 0).sum())
        fitted = min(images_at_once(self.images.images, self.clusters), self.options.sample_above)
        return {"sampled": {"knn": min(KNN_QUERIES, known), "pixels": max(fitted, self.clusters)}}

    def _two_views(self, branch: Branch) -> tuple[Any, Any] | None:
        """Features of two views of some images; None if views play no part in training."""
        if isinstance(branch.encoder, FrozenEncoder):
            return None
        views: tuple[Any, Any] = self.cache.get(branch.encoder, "views", lambda: self._views(branch.encoder))
        return views

    def _views(self, encoder: nn.Module) -> tuple[Any, Any]:
        count = len(self.images)
        # Evenly spaced, because files are sorted by class.
        rows = np.linspace(0, count - 1, min(MAX_ALIGNED_IMAGES, count)).round().astype(int)
        some: Images = self.images.images[rows]
        draw = generator(self.seed, "alignment")
        a, b = (encode(encoder, some, lambda batch: self.views(batch, draw)) for _ in range(2))
        return a, b


def _fields(prefix: str, scores: ClusterScores | None) -> dict[str, float]:
    return {} if scores is None else {f"{prefix}{key}": value for key, value in scores._asdict().items()}
