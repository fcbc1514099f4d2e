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

from fedmcc.data.any_images import float_scale, gathered, to_images, with_owners
from fedmcc.data.base import ImageSet
from fedmcc.evaluation.geometry import mean_features
from fedmcc.evaluation.label_free import silhouette
from fedmcc.networks import native_size
from fedmcc.runs.build import Experiment, assemble
from fedmcc.runs.fitted import Fitted, fit_config, load_fitted
from fedmcc.runs.in_memory import train_in_memory

ImagesLike = Any  # what the docstring of `fit` lists


class DeepClustering(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster images by the features that a network learns from them without labels.

    It follows scikit-learn: `fit_predict`, `fit_transform`, `get_params` and `set_params` work as usual.

    Parameters
    ----------
    n_clusters
        Number of clusters; "auto": it is chosen from the images.
    encoder
        Name of an encoder, a key of `ENCODERS`, or the path of pretrained weights: an ONNX file, or a folder
        of the Hugging Face hub. Pretrained encoders stay as they are, and their features are clustered.
    method
        Name of a method, a key of `METHODS`; None: the default one.
    views
        Preset of augmentations that suits the images, a key of `PRESETS`.
    epochs
        Rounds of the method; with the default method, a round is one pass over the images.
    random_state
        Seed; the same seed and number of threads give the same clusters. None: a new seed in each `fit`; a
        `RandomState`: the next seed from it.
    image_size
        Pixels of a side to which files and Pillow images are scaled and cropped; arrays keep their size, and
        a pretrained encoder has a size of its own.
    progress
        Whether a terminal shows a progress bar during `fit`.
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
    cluster_choice_ : dict or None
        With `n_clusters="auto"`, the chosen number and what each merge into fewer clusters costs.
    """

    def __init__(
        self,
        n_clusters: int | str = 10,
        *,
        encoder: str = "convnet",
        method: str | None = None,
        views: str = "photo",
        epochs: int = 40,
        random_state: int | np.integer | RandomState | None = 0,
        image_size: int = 96,
        progress: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.encoder = encoder
        self.method = method
        self.views = views
        self.epochs = epochs
        self.random_state = random_state
        self.image_size = image_size
        self.progress = progress
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
            or 0..255; as a list of Pillow images or of paths; as the path of a folder; or as a data set of
            PyTorch or a column of one of Hugging Face.
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
        given, config = gathered(X), fit_config(self.get_params(), self._seed())
        scale, side = float_scale(given), native_size(config.encoder) or self.image_size
        images = ImageSet(to_images(given, (side, side), None, scale))
        if groups is not None:
            images = with_owners(images, np.asarray(groups))
            config = replace(config, partition=replace(config.partition, name="by_group"))
        experiment = self._experiment = assemble(config, images)
        self.history_, self.cluster_choice_ = train_in_memory(experiment, self.progress)
        return self._keep(experiment, scale)

    def _keep(self, experiment: Experiment, scale: float | None) -> "DeepClustering":
        """Set the fitted attributes from a trained experiment."""
        scorer, online = experiment.scorer, experiment.net.online
        assert scorer is not None  # there are images to score
        extracted, shape = scorer.extract(online), experiment.images.images.shape[1:]
        temperature = scorer.temperature(online, extracted)
        self._fitted = Fitted(experiment.net, experiment.config, shape, scale, temperature)
        self.labels_ = scorer.assign(extracted).clusters
        self.n_clusters_, self.n_iter_ = scorer.count(extracted), len(self.history_)
        self.cluster_centers_ = mean_features(extracted.features, self.labels_, self.n_clusters_)
        return self

    def predict(self, X: ImagesLike, groups: Any = None) -> np.ndarray:  # noqa: N803
        """Assign images to the learned clusters.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.
        groups
            Owner of each image: its images are assigned given their mixture of clusters. None: unknown.

        Returns
        -------
        np.ndarray
            Cluster of each image.
        """
        fitted = self._trained()
        return fitted.clusters(fitted.extract(X, groups))

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
        return self._trained().extract(X).features

    def predict_proba(self, X: ImagesLike) -> np.ndarray:  # noqa: N803
        """Compute how likely another view of each image would be in each cluster.

        The soft assignments are calibrated without labels: stable clusters need not be correct ones.

        Parameters
        ----------
        X
            Images as in `fit`, with the same number of channels.

        Returns
        -------
        np.ndarray
            One row per image, one column per cluster.
        """
        fitted = self._trained()
        return fitted.probabilities(fitted.extract(X))

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
        fitted = self._trained()
        extracted = fitted.extract(X)
        clusters = fitted.clusters(extracted)
        if y is not None:
            return float(adjusted_rand_score(np.asarray(y), clusters))
        value = silhouette(extracted.features, clusters, fitted.config.general.seed)
        return -1.0 if value is None else value  # a single cluster is the worst clustering

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file, without pickle.

        Parameters
        ----------
        path
            The file.
        """
        fitted = self._trained()
        parameters = self.get_params() | {"random_state": fitted.config.general.seed}
        tensors = {
            "labels": torch.from_numpy(self.labels_.astype(np.int64)),
            "history": torch.tensor(self.history_, dtype=torch.float64),
            "centres": torch.from_numpy(self.cluster_centers_),
        }
        facts = {"parameters": parameters, "choice": self.cluster_choice_}
        fitted.save(Path(path), tensors, facts)

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
        fitted, tensors, facts = load_fitted(Path(path))
        model = DeepClustering(**facts["parameters"])
        model._fitted, model.cluster_choice_ = fitted, facts.get("choice")
        model.labels_ = tensors["labels"].numpy()
        model.history_ = tensors["history"].tolist()
        model.cluster_centers_ = tensors["centres"].numpy()
        model.n_clusters_, model.n_iter_ = len(model.cluster_centers_), len(model.history_)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[1])

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and scikit-learn's processes need: everything except the images and the clients."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_experiment"}

    def _trained(self) -> Fitted:
        check_is_fitted(self, "history_")
        return self._fitted

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))
