"""The scores at the top of a report, the most important first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmcc.evaluation.options import KNN_NEIGHBOURS
from fedmcc.report.run_facts import Facts
from fedmcc.runs.directory import Row

MEANINGS = {
    "acc": "fraction of images in the cluster of their class",
    "nmi": "mutual information with the classes, normalised",
    "ari": "agreement on pairs, corrected for chance",
}
LABEL_FREE_MEANINGS = {
    "confidence": "mean probability that another view has the same cluster",
    "balance": "1: all clusters have the same size",
    "silhouette": "separation of the clusters, −1 to 1",
    "alignment": "distance between two views; 0 is best",
    "uniformity": "spread of the features; lower is better",
}
WITH_BAR = ("confidence", "balance", "silhouette")  # label-free scores whose best value is 1


@dataclass(frozen=True)
class Tile:
    """A score with an explanation; `level`, from 0 to 1, is drawn as a bar."""

    name: str
    value: str
    meaning: str
    level: float | None = None


def score_tiles(facts: Facts) -> list[Tile]:
    """The clustering scores and their baselines; without labels, the label-free scores."""
    if not facts.scores:
        return _latest(facts.rows)
    scores: Mapping[str, Mapping[str, float]] = facts.scores.get("scores", {})
    main = "head" if scores.get("head") else "features"
    if not scores.get(main):
        return _label_free(facts.scores.get("label_free", {}))
    tiles = [_tile(key.upper(), scores[main][key], MEANINGS[key]) for key in MEANINGS]
    if scores.get("own"):
        tiles.append(_tile("at its client", scores["own"]["acc"], "ACC if the owner of an image is known"))
    if scores.get("further"):
        tiles.append(_tile("further images", scores["further"]["acc"], "ACC of images that no client has"))
    if main == "head" and scores.get("features"):
        tiles.append(_tile("k-means on features", scores["features"]["acc"], "ACC without the cluster head"))
    if scores.get("pixels"):
        meaning = "ACC without any training" + _sample(facts, "pixels", "centres from")
        tiles.append(_tile("k-means on pixels", scores["pixels"]["acc"], meaning))
    if facts.scores.get("knn") is not None:
        meaning = f"leave-one-out accuracy with {_neighbours(facts)} neighbours" + _sample(facts, "knn", "on")
        tiles.append(_tile("kNN", facts.scores["knn"], meaning))
    return tiles


def _sample(facts: Facts, score: str, use: str) -> str:
    """State the size of the sample that a score of a large set comes from."""
    size = facts.scores.get("sampled", {}).get(score)
    return f"; {use} a sample of {size:,}" if size else ""


def _neighbours(facts: Facts) -> int:
    """Number of neighbours that vote: at most all other labelled images."""
    labels = None if facts.assignments is None else facts.assignments.labels
    labelled = facts.scores.get("images") if labels is None else int((labels >= 0).sum())
    return min(KNN_NEIGHBOURS, labelled - 1) if labelled else KNN_NEIGHBOURS


def _latest(rows: Sequence[Row]) -> list[Tile]:
    """The latest value of each score of an unfinished run."""
    latest: dict[str, Any] = {}
    for row in rows:
        latest |= {key: value for key, value in row.items() if isinstance(value, float)}
    tiles = [_tile(key.upper(), latest[key], MEANINGS[key]) for key in MEANINGS if key in latest]
    if not tiles and "kmeans_acc" in latest:
        tiles.append(_tile("k-means on features", latest["kmeans_acc"], "ACC"))
    return tiles or _label_free(latest)


def _label_free(scores: Mapping[str, Any]) -> list[Tile]:
    tiles = []
    for key, meaning in LABEL_FREE_MEANINGS.items():
        if scores.get(key) is not None:
            tile = _tile(key, scores[key], meaning)
            tiles.append(tile if key in WITH_BAR else Tile(tile.name, tile.value, meaning))
    return tiles


def _tile(name: str, value: float | int, meaning: str) -> Tile:
    return Tile(name, f"{value:z.3f}", meaning, float(min(1, max(0, value))))
