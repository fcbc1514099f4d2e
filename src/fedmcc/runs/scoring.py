"""The images that a run is scored on, and its scorer."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmcc.config import Config
from fedmcc.data.base import ImageSet
from fedmcc.data.partition import Rows
from fedmcc.errors import InputError
from fedmcc.networks import is_frozen

if TYPE_CHECKING:
    from fedmcc.evaluation.scorer import Scorer


def scored_images(config: Config) -> ImageSet:
    """The images of `evaluation.split`, or the training images if it is not set (D15)."""
    split = config.evaluation.split
    if split is None:
        return config.data.load()
    if "split" not in {field.name for field in fields(config.data)}:
        raise InputError(f"evaluation.split is '{split}', but this data set has no splits: leave it out.")
    return replace(config.data, split=split).load()  # type: ignore[call-arg]


def scorer_of(config: Config, images: ImageSet, shards: Sequence[Rows] = ()) -> "Scorer":
    """A scorer on these images, or on `evaluation.split` if the configuration sets it."""
    if config.evaluation.split is not None:
        return make_scorer(config, scored_images(config))
    return replace(make_scorer(config, images), owners=owners(shards, len(images)))


def owners(shards: Sequence[Rows], count: int) -> Rows | None:
    """The client of each image, -1 if none has it; None if there is a single client."""
    if len(shards) < 2:
        return None
    found: Rows = np.full(count, -1)
    for client, rows in enumerate(shards):
        found[rows] = client
    return found


def make_scorer(config: Config, scored: ImageSet) -> "Scorer":
    """A scorer on exactly these images."""
    from fedmcc.evaluation.scorer import Scorer  # sites score nothing: they do not load its libraries

    general = config.general
    if (general.clusters or 0) > len(scored):
        raise InputError(f"{general.clusters} clusters, but only {len(scored)} images to score: give more.")
    options = config.evaluation
    return Scorer(scored, config.views, general.clusters or 0, general.seed, options, remedy=_remedy(config))


def _remedy(config: Config) -> str:
    """What the user can change in this configuration if the clusters collapse."""
    from fedmcc.evaluation.label_free import BETTER_VIEWS

    for section in ("method", "clustering"):
        options: Any = getattr(config, section)
        parts = {part for stage in options.stages() for part in stage.trained}
        if parts & {"online", "online.cluster_projector"} and hasattr(options, "entropy_weight"):
            return f"Raise {section}.entropy_weight or choose views that fit the images."
    if is_frozen(config.encoder):
        return "Choose another encoder or fewer clusters."
    return BETTER_VIEWS
