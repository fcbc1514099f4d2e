"""DeepClustering: federated clustering as a scikit-learn estimator."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedmcc.config import DEFAULT_METHOD, Config, Table, parse, set_key
from fedmcc.data.arrays import as_images
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted, extract
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, assemble


class DeepClustering(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster images by the features that a network learns from them without labels.

    It follows scikit-learn: `fit_predict`, `fit_transform`, `get_params` and `set_params` work as usual.

    Parameters
    ----------
    n_clusters
        Number of clusters.
    method
        Name of a method, a key of `METHODS`.
    views
        Preset of augmentations that suits the images, a key of `PRESETS`.
    epochs
        Rounds of the method; with the default method, a round is one pass over the images.
    random_state
        Seed; the same seed and number of threads give the same clusters.
    settings
        Any other key of a configuration, such as `{"encoder.name": "resnet18"}`.

    Attributes
    ----------
    labels_ : np.ndarray
        Cluster of each image given to `fit`.
    history_ : list[float]
        Loss of each round, except rounds that train nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from fedmcc import DeepClustering
    >>> images = np.random.default_rng(0).random((40, 8, 8))
    >>> model = DeepClustering(n_clusters=3, epochs=1, settings={"training.batch_size": 20})
    >>> model.fit(images).labels_.shape
    (40,)
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        method: str = DEFAULT_METHOD,
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

    def fit(self, X: ArrayLike, y: None = None, groups: ArrayLike | None = None) -> "DeepClustering":  # noqa: N803
        """Train on images and cluster them.

        Parameters
        ----------
        X
            Images as (n, h, w), (n, h, w, c) or (n, c, h, w); bytes, or floats from 0 to 1.
        y
            Ignored; scikit-learn passes it.
        groups
            Owner of each image; every owner becomes a client of a federation simulated on this machine.

        Returns
        -------
        DeepClustering
            The fitted estimator itself.

        Examples
        --------
        >>> import numpy as np
        >>> from fedmcc import DeepClustering
        >>> images = np.random.default_rng(0).random((40, 8, 8))
        >>> hospitals = ["Ulm"] * 20 + ["Bonn"] * 20
        >>> model = DeepClustering(n_clusters=3, epochs=1, settings={"training.batch_size": 20})
        >>> len(model.fit(images, groups=hospitals).history_)
        1
        """
        images, config = ImageSet(as_images(np.asarray(X), "X")), self._config()
        if groups is not None:
            images = _with_owners(images, np.asarray(groups))
            config = replace(config, partition=replace(config.partition, name="by_group"))
        self._experiment = assemble(config, images)
        self.history_ = _train(self._experiment)
        assert self._experiment.scorer is not None  # there are images to score
        self.labels_ = self._experiment.scorer.assign(self._extract(X)).clusters
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:  # noqa: N803
        """Assign images to the learned clusters.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            Cluster of each image.

        Examples
        --------
        >>> import numpy as np
        >>> from fedmcc import DeepClustering
        >>> images = np.random.default_rng(0).random((40, 8, 8))
        >>> model = DeepClustering(n_clusters=3, epochs=1, settings={"training.batch_size": 20})
        >>> model.fit(images).predict(images[:5]).shape
        (5,)
        """
        assignments = self._extract(X).assignments
        if assignments is None:
            raise TypeError(f"The method '{self.method}' learns features only: use transform.")
        return np.asarray(assignments.argmax(axis=1))

    def transform(self, X: ArrayLike) -> np.ndarray:  # noqa: N803
        """Compute the features of images.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            One row of features per image.

        Examples
        --------
        >>> import numpy as np
        >>> from fedmcc import DeepClustering
        >>> images = np.random.default_rng(0).random((40, 8, 8))
        >>> model = DeepClustering(n_clusters=3, epochs=1, settings={"training.batch_size": 20})
        >>> model.fit(images).transform(images).shape
        (40, 128)
        """
        return self._extract(X).features

    def _extract(self, X: ArrayLike) -> Extracted:  # noqa: N803
        check_is_fitted(self, "history_")
        experiment = self._experiment
        images = as_images(np.asarray(X), "X")
        fitted = experiment.images.images.shape[1]
        if images.shape[1] != fitted:
            raise InputError(
                f"X has {images.shape[1]} channels, but the fitted images have {fitted}: convert X."
            )
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


def _with_owners(images: ImageSet, groups: np.ndarray) -> ImageSet:
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
