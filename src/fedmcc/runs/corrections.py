"""Corrections of a complete run by the user, checked and stored: names of clusters, and merges."""

from collections.abc import Sequence

from fedmcc.errors import InputError
from fedmcc.runs.clusters import Edits, load_edits, require_cluster, save_edits
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


def cluster_count(run: Run) -> int:
    """The number of clusters of a complete run."""
    scores = run.read_json("scores.json")
    if not isinstance(scores.get("clusters"), int):
        raise InputError(f"{run.path} is not complete: finish it with `fedmcc resume`.")
    return int(scores["clusters"])
