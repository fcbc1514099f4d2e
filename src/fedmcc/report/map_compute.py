"""Computes the map of a run's images with its network: the only module of a report that needs torch."""

from dataclasses import dataclass
from operator import ne
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import names_and_labels
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.scorer import Scorer
from fedmcc.evaluation.tsne import (
    MAX_TSNE_IMAGES,
    embed,
    nearest_in_sample,
    stratified_sample,
    typicality,
)
from fedmcc.numerics.randomness import generator
from fedmcc.report.map_cache import ImageMap, save_map
from fedmcc.report.run_facts import Assignments, Facts
from fedmcc.runs.build import Experiment, Trained, reopen
from fedmcc.runs.directory import Run

IMAGES_AT_SITES = "The images of the run are at its sites and cannot be read here."
VIEWED_IMAGES, VIEWS_PER_IMAGE = 5, 7  # of the section that shows views
NEIGHBOURS = 12  # of each image, for the search by example

Tiles = UInt8[np.ndarray, "rows columns c h w"]  # each row: an image, then views of it


@dataclass(frozen=True, eq=False)
class RunImages:
    """The images of a run with their clusters, their map and some views."""

    assignments: Assignments
    image_map: ImageMap
    images: ImageSet
    views: Tiles


def load_images(
    facts: Facts, image_map: ImageMap | None = None, experiment: Experiment | None = None
) -> RunImages:
    """Load the images of a run, and compute and cache their map unless it is given.

    `experiment` is that of the finished run, if its images and network are in memory. Raise InputError
    if the images are missing or are not the ones that the run assigned to clusters.
    """
    trained = _trained(facts, experiment)
    images = trained.scorer.images
    if facts.assignments is not None:
        check_same_images(facts.assignments, images)
    assignments = facts.assignments
    if image_map is None or assignments is None:
        extracted = _extract(trained, facts)
        assignments = assignments or _assign(trained.scorer, extracted)
        image_map = _compute_map(extracted, assignments, trained.config.general.seed)
        save_map(facts.run, image_map)
    return RunImages(assignments, image_map, images, _views(trained, experiment))


def _trained(facts: Facts, experiment: Experiment | None) -> Trained:
    """The network of the run and its scorer, from memory or from the run directory."""
    if experiment is not None:
        if experiment.scorer is None:
            raise InputError(IMAGES_AT_SITES)
        return Trained(experiment.config, experiment.net, experiment.scorer)
    if facts.run.sites_file.exists() and not facts.option("evaluation", "at_server", False):
        raise InputError(IMAGES_AT_SITES)
    return reopen(facts.run, _checkpoint(facts.run))


def _checkpoint(run: Run) -> Path | None:
    """The network of the last finished round; None: the final one."""
    if run.model_file.exists():
        return None
    name = run.read_json("resume/progress.json").get("model")
    if not isinstance(name, str):
        raise InputError(f"{run.path} has no network yet: finish a round with `fedmcc resume`.")
    return run.resume_folder / name


def check_same_images(assignments: Assignments, images: ImageSet) -> None:
    """Refuse images whose number, names or labels are not those that the run assigned."""
    count, remedy = len(images), "restore the images that it was trained on."
    if len(assignments) != count:
        raise InputError(
            f"The run assigned {len(assignments):,} images, but its data set now has {count:,}: {remedy}"
        )
    current = list(names_and_labels(images))
    expected = zip(
        assignments.names, _label_names(assignments) or [label for _, label in current], strict=True
    )
    changed = sum(map(ne, current, expected))
    if changed:
        raise InputError(
            f"{changed:,} of the {count:,} images have another name or label, or another position in "
            f"the data set, than when the run assigned them: {remedy}"
        )


def _label_names(assignments: Assignments) -> list[str] | None:
    """The class of each image, empty if the image has no label; None if no image has one."""
    if assignments.labels is None:
        return None
    names = (*assignments.classes, "")  # the index -1 is the last one
    return [names[label] for label in assignments.labels]


def _extract(trained: Trained, facts: Facts) -> Extracted:
    """Features and soft assignments; the latter only if the cluster head has been trained."""
    extracted = trained.scorer.extract(trained.net.online)
    has_trained_head = any("confidence" in row for row in facts.rows)
    return extracted if has_trained_head else extracted._replace(assignments=None)


def _assign(scorer: Scorer, extracted: Extracted) -> Assignments:
    """The clusters of an unfinished run, as its network assigns them now."""
    images, assignment = scorer.images, scorer.assign(extracted)
    labels = images.labels if images.labels is not None and bool((images.labels >= 0).any()) else None
    classes: tuple[str, ...] = ()
    if labels is not None:
        classes = images.classes or tuple(map(str, range(int(labels.max()) + 1)))
    confidence = assignment.confidence
    return Assignments(
        clusters=assignment.clusters.astype(np.int64),
        confidence=None if confidence is None else confidence.astype(np.float32),
        labels=labels,
        classes=classes,
        names=list(map(str, images.names if images.names is not None else range(len(images)))),
    )


def _compute_map(extracted: Extracted, assignments: Assignments, seed: int) -> ImageMap:
    """t-SNE of a sample that has every class (without labels: every cluster) in proportion."""
    strata = assignments.clusters if assignments.labels is None else assignments.labels
    rows = stratified_sample(strata, MAX_TSNE_IMAGES, seed)
    points = embed(extracted.features[rows], seed)
    typical = typicality(extracted.features, assignments.clusters)
    return ImageMap(rows, points, typical, nearest_in_sample(extracted.features, rows, NEIGHBOURS))


def _views(trained: Trained, experiment: Experiment | None) -> Tiles:
    """A few training images, each followed by views of it as training draws them."""
    images, views = _training_images(trained, experiment).images, trained.config.views
    rows = np.linspace(0, len(images) - 1, min(VIEWED_IMAGES, len(images))).round().astype(int)
    originals = torch.from_numpy(np.array(images[rows]))
    draw = generator(trained.config.general.seed, "picture")
    drawn = [views.plain(originals), *(views(originals, draw) for _ in range(VIEWS_PER_IMAGE))]
    return _pixels(torch.stack(drawn, dim=1))


def _training_images(trained: Trained, experiment: Experiment | None) -> ImageSet:
    if experiment is not None:
        return experiment.images
    scored_apart = trained.config.evaluation.split is not None
    return trained.config.data.load() if scored_apart else trained.scorer.images


def _pixels(values: Tensor) -> Tiles:
    pixels: Tiles = values.mul(255).round().to(torch.uint8).cpu().numpy()
    return pixels
