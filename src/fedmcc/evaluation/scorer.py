"""The scores of a round and of a finished run, each computed from one extraction."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from fedmcc.data.base import Images, ImageSet
from fedmcc.evaluation.assignments import Assignment, Soft
from fedmcc.evaluation.calibration import fit_temperature, temper
from fedmcc.evaluation.clustering import ClusterScores, cluster_sizes, score
from fedmcc.evaluation.features import EncoderCache, Extracted, assign, at_owners, encode
from fedmcc.evaluation.kmeans import Assigned, images_at_once, kmeans, raw_kmeans
from fedmcc.evaluation.knn import WeightedKNN
from fedmcc.evaluation.label_free import BETTER_VIEWS, collapse_warning, sample_rows, score_without_labels
from fedmcc.evaluation.options import KNN_QUERIES, Evaluation
from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.momentum import Branch
from fedmcc.networks.prototypes import Prototypes
from fedmcc.numerics.kmeans import unit_rows
from fedmcc.numerics.neighbours import nearest
from fedmcc.numerics.randomness import generator
from fedmcc.training.feature_files import feature_file
from fedmcc.views import Views

Edit = Callable[[Soft, Any], Soft]  # of soft assignments and features

MAX_ALIGNED_IMAGES = 500  # images of which two views are compared


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores branches on one set of images."""

    images: ImageSet
    views: Views
    clusters: int
    seed: int
    options: Evaluation
    edit: Edit | None = None  # applies the corrections of the user to soft assignments
    merged: int = 0  # clusters that the user merged into others: they are empty on purpose
    owners: Int[np.ndarray, " n"] | None = None  # the client of each image, -1 for none; None: one or unknown
    remedy: str = BETTER_VIEWS  # what the user can change if the clusters have collapsed
    cache: EncoderCache = field(init=False, default_factory=EncoderCache)  # for these images only

    def extract(self, branch: Branch, edited: bool = True, owned: bool = True) -> Extracted:
        """Features and assignments of all images, without augmentation, with the edits of the user.

        Images are assigned as at their client, where it is known and the head can use it, unless `owned` is
        false.
        """
        features = self.cache.get(branch.encoder, "features", lambda: self._encode(branch.encoder))
        assignments = at_owners(branch, features, self.owners) if owned and self.owners is not None else None
        if assignments is None:
            assignments = assign(branch, features, self.options.batch_size)
        if assignments is None or self.edit is None or not edited:
            return Extracted(features, assignments)
        return Extracted(features, self.edit(assignments, features))

    def round(self, branch: Branch, with_head: bool, with_kmeans: bool) -> dict[str, float]:
        """The scores of a row of metrics; undefined scores are left out.

        Pass `with_head=False` until a stage has trained the cluster head.
        """
        extracted = self.extract(branch, owned=False)
        if not with_head:
            extracted = extracted._replace(assignments=None)
        scores = self._without_labels(branch, extracted)
        if extracted.assignments is not None:
            clusters = extracted.assignments.argmax(axis=1)
            scores |= self._fields(lambda: clusters)
        if with_kmeans:
            scores |= self._fields(lambda: self.kmeans(extracted, branch), "kmeans_")
        return {key: value for key, value in scores.items() if value is not None}

    def final(self, branch: Branch, extracted: Extracted) -> dict[str, Any]:
        """The final scores: of the head, of k-means on pixels and features, of kNN, and without labels."""
        images, count = self.images, self.count(extracted)
        sample = self.options.sample_above or None
        scores = {
            "pixels": self._fields(lambda: raw_kmeans(images.images, count, self.seed, sample)),
            "features": self._fields(lambda: self.kmeans(extracted, branch)),
        }
        assigned = self.assign(extracted, branch).clusters
        if extracted.assignments is not None:
            scores |= self._of_head(branch, assigned)
        return self._sample_sizes(count) | {
            "images": len(images),
            "split": images.split,
            "clusters": count,
            "scores": scores,
            "knn": self._knn(extracted),
            "label_free": self._without_labels(branch, extracted),
            "sizes": cluster_sizes(assigned, count).tolist(),
            "warning": collapse_warning(extracted.features, assigned, count, self.merged, self.remedy),
        }

    def _of_head(self, branch: Branch, assigned: Assigned) -> dict[str, dict[str, float]]:
        """Scores of the head: with unknown owner, at the images' own clients, and of images of no client."""
        if self.owners is None:
            return {"head": self._fields(lambda: assigned)}
        soft = self.extract(branch, owned=False).assignments
        assert soft is not None  # there is a head
        unknown, held = soft.argmax(axis=1), self.owners >= 0
        scores = {"head": self._fields(lambda: unknown, rows=held)}
        if isinstance(branch.cluster_projector, Prototypes):
            scores["own"] = self._fields(lambda: assigned, rows=held)
        if not held.all():
            scores["further"] = self._fields(lambda: unknown, rows=~held)
        return scores

    def count(self, extracted: Extracted) -> int:
        """The number of clusters: that of the head, if there is one, which may be smaller than the stated."""
        return self.clusters if extracted.assignments is None else extracted.assignments.shape[1]

    def assign(self, extracted: Extracted, branch: Branch | None = None) -> Assignment:
        """Cluster of each image by the head, or by k-means if there is no head."""
        if extracted.assignments is None:
            return Assignment(self.kmeans(extracted, branch), confidence=None)
        if branch is None:
            return Assignment.from_soft(extracted.assignments)
        calibrated = temper(extracted.assignments, self.temperature(branch, extracted))
        return Assignment.from_soft(extracted.assignments, calibrated)

    def temperature(self, branch: Branch, extracted: Extracted) -> float:
        """The temperature at which assignments predict the clusters of views, or of nearest neighbours."""
        if self.owners is not None:  # views have no owner
            extracted = self.extract(branch, owned=False)
        assignments, views = extracted.assignments, self._two_views(branch)
        if assignments is None or len(assignments) < 2:
            return 1.0
        if views is None:
            rows = sample_rows(len(assignments), self.seed)
            near, _ = nearest(torch.from_numpy(unit_rows(extracted.features[rows])), 1)
            return fit_temperature(assignments[rows], assignments[rows].argmax(axis=1)[near[:, 0].numpy()])
        rows = np.concatenate([self._viewed_rows()] * 2)
        features = np.concatenate(views)
        soft = assign(branch, features, self.options.batch_size)
        assert soft is not None  # there are assignments
        soft = soft if self.edit is None else self.edit(soft, features)
        return fit_temperature(assignments[rows], soft.argmax(axis=1))

    def _without_labels(self, branch: Branch, extracted: Extracted) -> dict[str, float | None]:
        views, temperature = self._two_views(branch), self.temperature(branch, extracted)
        return score_without_labels(extracted, self.seed, views, temperature)._asdict()

    def kmeans(self, extracted: Extracted, branch: Branch | None = None) -> Assigned:
        """k-means on features; cached if `branch` is given, which must be the one that was extracted."""
        count = self.count(extracted)

        def compute() -> Assigned:
            return kmeans(extracted.features, count, self.seed)

        if branch is None:
            return compute()
        assigned: Assigned = self.cache.get(branch.encoder, f"k-means {count}", compute)
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

    def _sample_sizes(self, count: int) -> dict[str, dict[str, int]]:
        """How many images the scores come from that are computed on a sample; nothing if none is."""
        if not self.options.samples(len(self.images)):
            return {}
        labels = self.images.labels
        known = 0 if labels is None else int((labels >= 0).sum())
        fitted = min(images_at_once(self.images.images, count), self.options.sample_above)
        return {"sampled": {"knn": min(KNN_QUERIES, known), "pixels": max(fitted, count)}}

    def _two_views(self, branch: Branch) -> tuple[Any, Any] | None:
        """Features of two views of some images; None if views play no part in training."""
        if isinstance(branch.encoder, FrozenEncoder):
            return None
        views: tuple[Any, Any] = self.cache.get(branch.encoder, "views", lambda: self._views(branch.encoder))
        return views

    def _views(self, encoder: nn.Module) -> tuple[Any, Any]:
        some: Images = self.images.images[self._viewed_rows()]
        draw = generator(self.seed, "alignment")
        a, b = (encode(encoder, some, lambda batch: self.views(batch, draw)) for _ in range(2))
        return a, b

    def _viewed_rows(self) -> Any:
        """The images of which two views are compared: evenly spaced, because files are sorted by class."""
        count = len(self.images)
        return np.linspace(0, count - 1, min(MAX_ALIGNED_IMAGES, count)).round().astype(int)

    def _fields(
        self, assign: Callable[[], Assigned], prefix: str = "", rows: Any = slice(None)
    ) -> dict[str, float]:
        """The scores of a clustering against the labels; without labels it is not computed."""
        labels = None if self.images.labels is None else self.images.labels[rows]
        if labels is None or not (labels >= 0).any():
            return {}
        scores: ClusterScores | None = score(labels, assign()[rows])
        return {} if scores is None else {f"{prefix}{key}": value for key, value in scores._asdict().items()}
