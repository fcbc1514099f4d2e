"""Corrections of a complete run by the user, checked and stored: names of clusters, merges and splits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmcc.errors import InputError
from fedmcc.evaluation.geometry import fit_geometry
from fedmcc.evaluation.splitting import split_rows
from fedmcc.runs.build import reopen
from fedmcc.runs.cluster_choice import CUT_FILE, MIXTURES_FILE, record_mixtures, recut
from fedmcc.runs.clusters import Edits, load_edits, require_cluster, rewrite, save_edits, save_geometry
from fedmcc.runs.directory import Run


def name_cluster(run: Run, cluster: int, name: str) -> Edits:
    """Name a cluster; an empty name removes it."""
    edits = load_edits(run)
    require_cluster(run, cluster, edits, cluster_count(run))
    edits = edits.with_name(cluster, name)
    save_edits(run, edits)
    return edits


def merge_clusters(run: Run, cluster: int, others: Sequence[int]) -> Edits:
    """Merge other clusters into a cluster."""
    edits, count = load_edits(run), cluster_count(run)
    for number in (cluster, *others):
        require_cluster(run, number, edits, count)
    if len({cluster, *others}) < 1 + len(others):
        raise InputError("A cluster is given twice: give each number once.")
    if count - len(edits.merged) - len(others) < 2:
        raise InputError("A run needs 2 clusters or more: merge fewer of them.")
    edits = edits.with_merged(cluster, others)
    save_edits(run, edits)
    return edits


def split_cluster(run: Run, cluster: int, into: int) -> Edits:
    """Divide a cluster by the features of its images, which must be on this machine."""
    if into < 2:
        raise InputError(f"--into is {into}: give 2 or more.")
    trained, edits = reopen(run), load_edits(run)
    extracted = trained.scorer.extract(trained.net.online)
    if extracted.assignments is None:
        raise InputError(f"{run.path} has no cluster head: train with a section [clustering] first.")
    count = extracted.assignments.shape[1]
    require_cluster(run, cluster, edits, count)
    rows = extracted.features[extracted.assignments.argmax(axis=1) == cluster]
    if len(np.unique(rows, axis=0)) < into:
        raise InputError(f"Cluster {cluster} has {len(rows)} images, too few or too alike for {into} parts.")
    split = split_rows(rows, (cluster, *range(count, count + into - 1)), edits.merged)
    edits = replace(edits, splits=(*edits.splits, split))
    save_edits(run, edits)
    return edits


def set_clusters(run: Run, clusters: int, force: bool) -> None:
    """Give a complete run another number of clusters, from the hierarchy of their merges, without training.

    Names, merges and splits belong to the former clusters: they are removed, which needs `force`.
    """
    cluster_count(run)  # raises InputError for an unfinished run
    if load_edits(run) != Edits() and not force:
        raise InputError(
            f"{run.path} has names, merges or splits of its clusters, which another number loses: "
            "add --force to remove them."
        )
    trained = reopen(run)
    if clusters > (images := len(trained.scorer.images)):
        raise InputError(f"{clusters} clusters, but only {images} images to score: give fewer.")
    recut(trained.net, run, clusters)  # raises InputError before anything is written
    save_edits(run, Edits())
    run.write_json(CUT_FILE, {"clusters": clusters})
    trained = reopen(run)
    scorer, online = trained.scorer, trained.net.online
    extracted = scorer.extract(online)
    found = scorer.assign(extracted, online)
    geometry = fit_geometry(extracted.features, found.clusters, scorer.count(extracted))
    save_geometry(run, replace(geometry, temperature=scorer.temperature(online, extracted)))
    soft = scorer.extract(online, owned=False).assignments
    if (names := [*run.read_json(MIXTURES_FILE)]) and scorer.owners is not None and soft is not None:
        record_mixtures(run, names, scorer.owners, soft)
    rewrite(run)


def cluster_count(run: Run) -> int:
    """The number of clusters of a complete run."""
    scores = run.read_json("scores.json")
    if not isinstance(scores.get("clusters"), int):
        raise InputError(f"{run.path} is not complete: finish it with `fedmcc resume`.")
    return int(scores["clusters"])
