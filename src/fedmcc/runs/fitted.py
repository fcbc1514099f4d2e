"""A trained network in memory, for images as Python programs hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmcc.config import DEFAULT_METHOD, Config, Table, parse, set_key
from fedmcc.data.any_images import gathered, to_images
from fedmcc.errors import InputError, InvalidArrayError
from fedmcc.evaluation.calibration import temper
from fedmcc.evaluation.features import Extracted, at_owners, extract
from fedmcc.methods.choosing import AUTO
from fedmcc.networks import is_frozen
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State
from fedmcc.runs.encoder_names import encoder_section
from fedmcc.runs.saved_model import SavedModel, load_model, save_model


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network with what it needs to assign further images."""

    net: Network
    config: Config  # complete
    shape: tuple[int, ...]  # channels, height and width of the images that it was trained on
    scale: float | None  # the largest possible value of images that are floats; None: they were not floats
    temperature: float  # of soft assignments that predict the clusters of other views

    def extract(self, given: object, groups: object = None) -> Extracted:
        """Features and soft assignments of images; files and Pillow images get the fitted shape.

        If the owners of the images are given, assignments are those at their owners.
        """
        channels, *sides = self.shape
        images = to_images(gathered(given), (sides[0], sides[1]), channels, self.scale)
        if images.shape[1] != channels:
            raise InputError(
                f"X has {images.shape[1]} channels, but the fitted images have {channels}: convert X."
            )
        extracted = extract(self.net.online, images, self.config.views.plain)
        if groups is None:
            return extracted
        owners = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        if len(owners) != len(images):
            raise InputError(
                f"groups has {len(owners)} owners of {len(images)} images: give one for each image."
            )
        owned = at_owners(self.net.online, extracted.features, owners)
        return extracted if owned is None else Extracted(extracted.features, owned)

    def clusters(self, extracted: Extracted) -> np.ndarray:
        """The cluster of each image."""
        return np.asarray(_soft(extracted).argmax(axis=1))

    def probabilities(self, extracted: Extracted) -> np.ndarray:
        """Calibrated soft assignments."""
        return temper(_soft(extracted), self.temperature)

    def save(self, path: Path, tensors: State, facts: Mapping[str, Any]) -> None:
        """Write everything to one file, with further tensors and facts."""
        own = {"shape": list(self.shape), "scale": self.scale, "temperature": self.temperature}
        save_model(path, SavedModel(self.net, self.config, self.shape[0], tensors, {**own, **facts}))


def fit_config(parameters: Mapping[str, Any], seed: int) -> Config:
    """The configuration for the parameters of the estimator."""
    encoder = encoder_section(parameters["encoder"])
    table: Table = {
        "clusters": _clusters(parameters["n_clusters"]),
        "seed": seed,
        "encoder": encoder,
        "views": {"preset": parameters["views"]},
    }
    method = parameters["method"]
    if method is not None or not is_frozen(parse({"encoder": encoder}).encoder):
        table["method"] = {"name": method or DEFAULT_METHOD, "rounds": parameters["epochs"]}
    for key, value in (parameters["settings"] or {}).items():
        table = set_key(table, key, value)
    return parse(table)


def _clusters(given: object) -> int | str:
    if isinstance(given, str) and given == AUTO:
        return given
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 2:
        raise InvalidArrayError(f"n_clusters is {given!r}: give a whole number from 2, or '{AUTO}'.")
    return int(given)


def load_fitted(path: Path) -> tuple[Fitted, State, Mapping[str, Any]]:
    """Read what `Fitted.save` wrote: the network, further tensors and facts."""
    saved = load_model(path)
    facts = saved.facts
    shape, temperature = tuple(facts["shape"]), facts.get("temperature", 1.0)
    return Fitted(saved.net, saved.config, shape, facts["scale"], temperature), saved.tensors, facts


def _soft(extracted: Extracted) -> np.ndarray:
    if extracted.assignments is None:
        raise TypeError("The method learns features only: use transform.")
    return extracted.assignments
