"""DeepClustering: federated clustering as a scikit-learn estimator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, check_random_state

from fedmcc.config import DEFAULT_METHOD, Config, Table, parse, set_key
from fedmcc.data.any_images import float_scale, to_images, with_owners
from fedmcc.data.base import Images, ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.features import Extracted, extract
from fedmcc.evaluation.geometry import mean_features
from fedmcc.evaluation.label_free import silhouette
from fedmcc.runs.build import assemble
from fedmcc.runs.in_memory import train_in_memory
from fedmcc.runs.saved_model import SavedModel, load_model, save_model

ImagesLike = Any  # what the docstring of `fit` lists


class DeepClustering(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
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
        Seed; the same seed and number of threads give the same clusters. None: a new seed in each `fit`; a
        `RandomState`: the next seed from it.
    image_size
        Pixels of a side to which files and Pillow images are scaled and cropped; arrays keep their size.
    settings
        Any other key of a configuration, such as `{"encoder.name": "resnet18"}`.

    Attributes
    ----------
    labels_ : np.ndarray
        Cluster of each image given to `fit`.
    history_ : list[float]
        Loss of each round, except rounds that train nothing.
    n_clusters_ : int
        Number of clusters.
    n_iter_ : int
        Number of rounds that trained something.
    cluster_centers_ : np.ndarray
        Mean of the features of each cluster; 0 for an empty one.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        method: str = DEFAULT_METHOD,
        views: str = "photo",
        epochs: int = 40,
        random_state: int | np.integer | RandomState | None = 0,
        image_size: int = 96,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.views = views
        self.epochs = epochs
        self.random_state = random_state
        self.image_size = image_size
        self.settings = settings

    def fit(
        self,
        X: ImagesLike,  # noqa: N803
        y: Any = None,
        groups: Sequence[Any] | np.ndarray | None = None,
    ) -> "DeepClustering":
        """Train on images and cluster them.

        Parameters
        ----------
        X
            Images as an array of shape (n, h, w), (n, h, w, c) or (n, c, h, w), of bytes or of floats in 0..1
            or 0..255; as a list of Pillow images or of paths; or as the path of a folder.
        y
            Ignored; scikit-learn passes it.
        groups
            Owner of each image; every owner becomes a client of a federation simulated on this machine.

        Returns
        -------
        DeepClustering
            Itself.

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
        self._scale = float_scale(X)
        images, config = ImageSet(self._images(X, None)), self._config()
        if groups is not None:
            images = with_owners(images, np.asarray(groups))
            config = replace(config, partition=replace(config.partition, name="by_group"))
        experiment = self._experiment = assemble(config, images)
        self.history_ = train_in_memory(experiment)
        self._net, self._resolved, self._shape = experiment.net, experiment.config, images.images.shape[1:]
        assert experiment.scorer is not None  # there are images to score
        extracted = experiment.scorer.extract(experiment.net.online)
        self.labels_ = experiment.scorer.assign(extracted).clusters
        self.n_clusters_, self.n_iter_ = experiment.config.general.clusters or 0, len(self.history_)
        self.cluster_centers_ = mean_features(extracted.features, self.labels_, self.n_clusters_)
        return self

    def predict(self, X: ImagesLike) -> np.ndarray:  # noqa: N803
        """Assign images to the learned clusters.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            Cluster of each image.
        """
        return np.asarray(self._soft(self._extract(X)).argmax(axis=1))

    def transform(self, X: ImagesLike) -> np.ndarray:  # noqa: N803
        """Compute the features of images.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            One row of features per image.
        """
        return self._extract(X).features

    def predict_proba(self, X: ImagesLike) -> np.ndarray:  # noqa: N803
        """Compute the soft assignments of images, which sum to 1; they are not calibrated probabilities.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            One row per image, one column per cluster.
        """
        return self._soft(self._extract(X))

    def score(self, X: ImagesLike, y: Any = None) -> float:  # noqa: N803
        """Score the clusters of images: higher is better, 1 is best.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.
        y
            Class of each image. None: the score needs no labels.

        Returns
        -------
        float
            Adjusted Rand index with the classes; without them the silhouette of the features.
        """
        extracted = self._extract(X)
        clusters = self._soft(extracted).argmax(axis=1)
        if y is not None:
            return float(adjusted_rand_score(np.asarray(y), clusters))
        value = silhouette(extracted.features, clusters, self._resolved.general.seed)
        return -1.0 if value is None else value  # a single cluster is the worst clustering

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file, without pickle.

        Parameters
        ----------
        path
            The file.
        """
        check_is_fitted(self, "history_")
        parameters = self.get_params() | {"random_state": self._resolved.general.seed}
        facts = {"parameters": parameters, "shape": list(self._shape), "scale": self._scale}
        tensors = {
            "labels": torch.from_numpy(self.labels_.astype(np.int64)),
            "history": torch.tensor(self.history_, dtype=torch.float64),
            "centres": torch.from_numpy(self.cluster_centers_),
        }
        save_model(Path(path), SavedModel(self._net, self._resolved, self._shape[0], tensors, facts))

    @staticmethod
    def load(path: str | Path) -> "DeepClustering":
        """Read an estimator that `save` wrote; its results are bit-identical on the same machine.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        DeepClustering
            The fitted estimator.

        Raises
        ------
        InputError
            If the file is damaged, or was changed after it was written.

        Examples
        --------
        >>> from fedmcc import DeepClustering, load_dataset
        >>> images = load_dataset("digits", limit=40).images
        >>> DeepClustering(n_clusters=3, epochs=1).fit(images).save("model.safetensors")
        >>> DeepClustering.load("model.safetensors").predict(images).shape
        (40,)
        """
        saved = load_model(Path(path))
        model = DeepClustering(**saved.facts["parameters"])
        model._net, model._resolved = saved.net, saved.config
        model._shape, model._scale = tuple(saved.facts["shape"]), saved.facts["scale"]
        model.labels_ = saved.tensors["labels"].numpy()
        model.history_ = saved.tensors["history"].tolist()
        model.cluster_centers_ = saved.tensors["centres"].numpy()
        model.n_clusters_, model.n_iter_ = len(model.cluster_centers_), len(model.history_)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[1])

    def _extract(self, X: ImagesLike) -> Extracted:  # noqa: N803
        check_is_fitted(self, "history_")
        images, fitted = self._images(X, self._shape), self._shape[0]
        if images.shape[1] != fitted:
            raise InputError(
                f"X has {images.shape[1]} channels, but the fitted images have {fitted}: convert X."
            )
        return extract(self._net.online, images, self._resolved.views.plain)

    def _soft(self, extracted: Extracted) -> np.ndarray:
        if extracted.assignments is None:
            raise TypeError(f"The method '{self.method}' learns features only: use transform.")
        return extracted.assignments

    def _images(self, X: ImagesLike, shape: tuple[int, ...] | None) -> Images:  # noqa: N803
        """Images as bytes; files and Pillow images get the shape of the fitted ones, if there are any."""
        if shape is None:
            return to_images(X, (self.image_size, self.image_size), None, self._scale)
        return to_images(X, (shape[1], shape[2]), shape[0], self._scale)

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _config(self) -> Config:
        table: Table = {
            "clusters": self.n_clusters,
            "seed": self._seed(),
            "method": {"name": self.method, "rounds": self.epochs},
            "views": {"preset": self.views},
        }
        for key, value in (self.settings or {}).items():
            table = set_key(table, key, value)
        return parse(table)
