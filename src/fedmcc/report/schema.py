"""Whether files of a run have the shape that a report relies on; another program's have not."""

from typing import Any

SECTIONS = ("data", "encoder", "method", "partition", "training", "evaluation")
CLUSTERING = ("acc", "nmi", "ari")

Table = dict[str, Any]


def is_config(config: Table) -> bool:
    """Sections are tables, and there are numbers of clusters and clients."""
    if not all(isinstance(config.get(name, {}), dict) for name in SECTIONS):
        return False
    counts = config.get("clusters", 0), config.get("partition", {}).get("clients", 1)
    return all(isinstance(count, int) for count in counts)


def is_scores(found: Table) -> bool:
    """Clusterings have all their scores or none, and every score is a number or missing."""
    clusterings, others = found.get("scores", {}), found.get("label_free", {})
    if not isinstance(clusterings, dict) or not isinstance(others, dict):
        return False
    numbers = [*others.values(), found.get("knn"), found.get("images")]
    return all(map(_is_clustering, clusterings.values())) and all(
        number is None or _is_number(number) for number in numbers
    )


def is_evaluation(found: Table) -> bool:
    """Protocols are tables of scores, each with its mean and its values."""
    return all(
        isinstance(scores, dict) and all(map(_is_measured, scores.values())) for scores in found.values()
    )


def _is_measured(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("values"), list)
        and all(map(_is_number, (found.get("mean"), found.get("std", 0), found.get("images", 0))))
    )


def _is_clustering(found: object) -> bool:
    return not found or (
        isinstance(found, dict) and all(_is_number(found.get(score)) for score in CLUSTERING)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float | int)
