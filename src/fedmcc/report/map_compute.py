"""What the network of a run sees in its images; here alone a report needs torch."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import names_and_labels
from fedmcc.evaluation.features import Extracted
from fedmcc.evaluation.scorer import Scorer
from fedmcc.evaluation.tsne import MAX_TSNE_IMAGES, embed, stratified_sample, typicality
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import copy_into
from fedmcc.report import map_cache
from fedmcc.report.map_cache import Landscape
from fedmcc.report.run_facts import Assigned, Facts
from fedmcc.runs import build, checkpoints, resolve
from fedmcc.runs.build import Experiment

WITH_SITES = "The images of the run are with its sites, where they stay."
ORIGINALS, VIEWS = 5, 7  # rows and columns of the picture of views

Tiles = UInt8[np.ndarray, "rows columns c h w"]  # in each row an image, then views of it


@dataclass(frozen=True, eq=False)
class Sight:
    """What a report shows of the images."""

    assigned: Assigned
    landscape: Landscape
    images: ImageSet
    views: Tiles


def look(facts: Facts, experiment: Experiment | None = None) -> Sight:
    """Put a sample of the run's images on a plane; images and network are loaded if they are not given.

    Refused in a sentence where the images are gone or are no longer those of the run.
    """
    experiment = experiment or _prepared(facts)
    scored = _scorer(experiment).images
    if facts.assigned is not None:
        _refuse_others(facts.assigned, scored)
    kept = map_cache.load(facts.run)
    if kept is None or facts.assigned is None:
        extracted = _extracted(experiment, facts)
        assigned = facts.assigned or _assigned(experiment, extracted)
        kept = _landscape(extracted, assigned, experiment.config.general.seed)
        map_cache.save(facts.run, kept)
    else:
        assigned = facts.assigned
    return Sight(assigned, kept, scored, _views(experiment))


def _refuse_others(assigned: Assigned, scored: ImageSet) -> None:
    """Images that are not, in number, name and label, those that the run assigned."""
    remedy = "put back the images that it was trained on."
    if len(assigned) != len(scored):
        raise InputError(
            f"The run assigned {len(assigned):,} images and its data set now has {len(scored):,}: {remedy}"
        )
    labels = (
        None if assigned.labels is None else [(*assigned.classes, "")[label] for label in assigned.labels]
    )
    found = names_and_labels(scored)
    changed = sum(
        name != assigned.names[row] or (labels is not None and label != labels[row])
        for row, (name, label) in enumerate(found)
    )
    if changed:
        raise InputError(
            f"{changed:,} of the {len(scored):,} images have another name or label, or another place in the "
            f"order, than when the run assigned them: {remedy}"
        )


def _prepared(facts: Facts) -> Experiment:
    # What was trained on one device can be looked at on any.
    loaded = config.load(facts.run.config_file, ["device=auto"])
    if facts.run.sites_file.exists() and not loaded.evaluation.at_server:
        raise InputError(WITH_SITES)
    return build.prepare(resolve.without_first_weights(loaded))


def _scorer(experiment: Experiment) -> Scorer:
    if experiment.scorer is None:
        raise InputError(WITH_SITES)
    return experiment.scorer


def _extracted(experiment: Experiment, facts: Facts) -> Extracted:
    """By the final network, or by the one of the last round; a head that is not trained yet says nothing."""
    if facts.run.model_file.exists():
        checkpoints.load_network(experiment.net, facts.run.model_file)
    else:
        saved = checkpoints.load_progress(facts.run)
        if saved is None:
            raise InputError(f"{facts.run.path} has no network yet: let `fedmcc resume` finish a round.")
        copy_into(experiment.net, saved.progress.model)
    extracted = _scorer(experiment).extract(experiment.net.online)
    with_head = any("confidence" in row for row in facts.rows)
    return extracted if with_head else extracted._replace(assignments=None)


def _assigned(experiment: Experiment, extracted: Extracted) -> Assigned:
    """The clusters so far, of a run that is not finished."""
    scorer = _scorer(experiment)
    scored, found = scorer.images, scorer.assign(extracted)
    labels = scored.labels
    known = labels is not None and bool((labels >= 0).any())
    classes = scored.classes or tuple(
        map(str, range(int(labels.max()) + 1 if known and labels is not None else 0))
    )
    return Assigned(
        clusters=found.clusters.astype(np.int64),
        confidence=None if found.confidence is None else found.confidence.astype(np.float32),
        labels=labels if known else None,
        classes=classes if known else (),
        names=list(map(str, scored.names if scored.names is not None else range(len(scored)))),
    )


def _landscape(extracted: Extracted, assigned: Assigned, seed: int) -> Landscape:
    strata = assigned.clusters if assigned.labels is None else assigned.labels
    rows = stratified_sample(strata, MAX_TSNE_IMAGES, seed)
    points = embed(extracted.features[rows], seed)
    return Landscape(rows, points, typicality(extracted.features, assigned.clusters))


def _views(experiment: Experiment) -> Tiles:
    """A few images, each followed by views of it as training draws them."""
    images, views = experiment.images.images, experiment.config.views
    rows = np.linspace(0, len(images) - 1, min(ORIGINALS, len(images))).round().astype(int)
    some = torch.from_numpy(np.array(images[rows]))
    draw = generator(experiment.config.general.seed, "picture")
    tiles = [views.plain(some), *(views(some, draw) for _ in range(VIEWS))]
    return _levels(torch.stack(tiles, dim=1))


def _levels(pixels: Tensor) -> Tiles:
    found: Tiles = pixels.mul(255).round().to(torch.uint8).cpu().numpy()
    return found
