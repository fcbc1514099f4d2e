"""Checks that files of a run have the structure that a report reads."""

from typing import Any

SECTIONS = ("data", "encoder", "method", "partition", "training", "evaluation")
CLUSTERING_SCORES = ("acc", "nmi", "ari")

Table = dict[str, Any]


def is_config(config: Table) -> bool:
    """Whether sections are tables, and clusters and clients are integers."""
    if not all(isinstance(config.get(name, {}), dict) for name in SECTIONS):
        return False
    counts = config.get("clusters", 0), config.get("partition", {}).get("clients", 1)
    return all(isinstance(count, int) for count in counts)


def is_scores(content: Table) -> bool:
    """Whether each clustering has all of its scores or none, and every other score is a number or null."""
    clusterings, label_free = content.get("scores", {}), content.get("label_free", {})
    sampled = content.get("sampled", {})
    if not all(isinstance(table, dict) for table in (clusterings, label_free, sampled)):
        return False
    numbers = [*label_free.values(), *sampled.values(), content.get("knn"), content.get("images")]
    return all(map(_is_clustering, clusterings.values())) and all(
        number is None or _is_number(number) for number in numbers
    )


def is_evaluation(content: Table) -> bool:
    """Whether protocols are tables of scores, each with a mean and a list of values."""
    return all(
        isinstance(scores, dict) and all(map(_is_protocol_score, scores.values()))
        for scores in content.values()
    )


def _is_protocol_score(score: object) -> bool:
    return (
        isinstance(score, dict)
        and isinstance(score.get("values"), list)
        and all(map(_is_number, (score.get("mean"), score.get("std", 0), score.get("images", 0))))
    )


def _is_clustering(scores: object) -> bool:
    return not scores or (
        isinstance(scores, dict) and all(_is_number(scores.get(name)) for name in CLUSTERING_SCORES)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float | int)
