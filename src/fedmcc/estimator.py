"""DeepClustering: the whole of fedmcc behind scikit-learn's fit, predict and transform."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedmcc.config import Config, Table, parse, set_key
from fedmcc.data.arrays import as_images
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted, extract
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, assemble, scorer_of


class DeepClustering(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Clusters images by what a network learns from them without labels.

    Parameters
    ----------
    n_clusters : number of clusters.
    method : name of a method, see `fedmcc list methods`.
    views : preset of augmentations that fits the images, see `fedmcc list views`.
    epochs : passes over the images.
    random_state : seed; the same seed and thread count give the same clusters.
    settings : anything else that a recipe can set, such as {"encoder.name": "resnet18"}.

    Attributes
    ----------
    labels_ : cluster of each image that was fitted.
    history_ : loss of each round that trained something.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        method: str = "fedmcc-plus",
        views: str = "photo",
        epochs: int = 40,
        random_state: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.views = views
        self.epochs = epochs
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: None = None, groups: Any = None) -> "DeepClustering":  # noqa: N803
        """Learn from images: (n, h, w), (n, h, w, c) or (n, c, h, w), bytes or floats in 0..1.

        `groups` says who owns each image; every owner is then a client of a federation on this machine.
        """
        images, config = ImageSet(as_images(np.asarray(X), "X")), self._config()
        if groups is not None:
            images = _owned(images, np.asarray(groups))
            config = replace(config, partition=replace(config.partition, name="by_group"))
        experiment = assemble(config, images)
        self.history_ = _train(experiment)
        self._experiment = experiment
        self.labels_ = scorer_of(experiment.config, images).assign(self._extract(X)).clusters
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The cluster of each image."""
        assignments = self._extract(X).assignments
        if assignments is None:
            raise TypeError(f"The method '{self.method}' learns features alone: use transform.")
        return np.asarray(assignments.argmax(axis=1))

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The features of each image."""
        return self._extract(X).features

    def _extract(self, X: Any) -> Extracted:  # noqa: N803
        check_is_fitted(self, "history_")
        experiment = self._experiment
        images = as_images(np.asarray(X), "X")
        fitted = experiment.images.images.shape[1]
        if images.shape[1] != fitted:
            raise InputError(f"X has {images.shape[1]} channels and the fitted images {fitted}: convert it.")
        return extract(experiment.net.online, images, experiment.config.views.plain)

    def _config(self) -> Config:
        table: Table = {
            "clusters": self.n_clusters,
            "seed": self.random_state,
            "method": {"name": self.method, "rounds": self.epochs},
            "views": {"preset": self.views},
        }
        for key, value in (self.settings or {}).items():
            table = set_key(table, key, value)
        return parse(table)


def _owned(images: ImageSet, groups: np.ndarray) -> ImageSet:
    if groups.shape != (len(images),):
        raise InputError(
            f"groups has the shape {groups.shape}: give one owner for each of {len(images)} images."
        )
    owners, numbers = np.unique(groups, return_inverse=True)
    return replace(images, groups=numbers.astype(np.int64), owners=tuple(map(str, owners)))


def _train(experiment: Experiment) -> list[float]:
    losses: list[float] = []
    progress = Progress(detached(experiment.net.state_dict()))
    config = experiment.config
    policy = experiment.policy(config.privacy.new_secret(config.general.seed))
    with experiment.engine as engine:
        for stage in experiment.stages:
            for event in rounds(stage, progress, engine, experiment.clients, policy):
                if isinstance(event, Round):
                    progress = event.progress
                    losses += [] if event.loss is None else [event.loss]
    copy_into(experiment.net, progress.model)
    return losses
