"""The scores that a report begins with, in order of weight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmcc.evaluation.options import KNN_NEIGHBOURS
from fedmcc.report.run_facts import Facts
from fedmcc.runs.directory import Row

MEANING = {
    "acc": "share of images in their class's cluster",
    "nmi": "information shared with the classes",
    "ari": "agreement on pairs, beyond chance",
}
LABEL_FREE = {
    "confidence": "mean of the largest soft assignment",
    "balance": "1: clusters of equal size",
    "silhouette": "from −1 to 1: how apart clusters are",
    "alignment": "distance of two views; 0 is best",
    "uniformity": "spread of the features; lower is better",
}
LEVELS = ("confidence", "balance", "silhouette")  # of which 1 is the best


@dataclass(frozen=True)
class Tile:
    """A score with what it means; `level` from 0 to 1 is drawn as a bar."""

    name: str
    value: str
    meaning: str
    level: float | None = None


def tiles(facts: Facts) -> list[Tile]:
    """With labels the scores of the clusters, then what they compare with; without, what can be said."""
    if not facts.scores:
        return _so_far(facts.rows)
    scores: Mapping[str, Mapping[str, float]] = facts.scores.get("scores", {})
    main = "head" if scores.get("head") else "features"
    if not scores.get(main):
        return _label_free(facts.scores.get("label_free", {}))
    found = [_tile(key.upper(), scores[main][key], MEANING[key]) for key in MEANING]
    if main == "head" and scores.get("features"):
        found.append(_tile("k-means on features", scores["features"]["acc"], "ACC without the cluster head"))
    if scores.get("pixels"):
        found.append(_tile("k-means on pixels", scores["pixels"]["acc"], "ACC without any training"))
    if facts.scores.get("knn") is not None:
        meaning = f"labels of {_neighbours(facts)} nearest images, one left out"
        found.append(_tile("kNN", facts.scores["knn"], meaning))
    return found


def _neighbours(facts: Facts) -> int:
    """Who votes on an image: the nearest others with a label."""
    labels = None if facts.assigned is None else facts.assigned.labels
    labelled = facts.scores.get("images") if labels is None else int((labels >= 0).sum())
    return min(KNN_NEIGHBOURS, labelled - 1) if labelled else KNN_NEIGHBOURS


def _so_far(rows: Sequence[Row]) -> list[Tile]:
    """The scores of the last round that has some."""
    last: dict[str, Any] = {}
    for row in rows:
        last |= {key: value for key, value in row.items() if isinstance(value, float)}
    found = [_tile(key.upper(), last[key], MEANING[key]) for key in MEANING if key in last]
    if not found and "kmeans_acc" in last:
        found.append(_tile("k-means on features", last["kmeans_acc"], "ACC"))
    return found or _label_free(last)


def _label_free(scores: Mapping[str, Any]) -> list[Tile]:
    found = []
    for key, meaning in LABEL_FREE.items():
        if scores.get(key) is not None:
            tile = _tile(key, scores[key], meaning)
            found.append(tile if key in LEVELS else Tile(tile.name, tile.value, meaning))
    return found


def _tile(name: str, value: float | int, meaning: str) -> Tile:
    return Tile(name, f"{value:z.3f}", meaning, float(min(1, max(0, value))))
