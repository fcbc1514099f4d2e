"""The number of clusters as a choice of the method: `clusters = "auto"`."""

from dataclasses import fields, replace
from typing import Any

from fedmcc.errors import InputError
from fedmcc.methods.base import Clustering, Method

AUTO = "auto"  # in place of the number of clusters
MOST_CLUSTERS = 30  # that `auto` considers; `clusters` and `choose` in a recipe set another number
IMAGES_PER_CLUSTER = 10  # at least, on average
AUTO_CLUSTERING = "spectral"  # that follows a method without a cluster head


def choosing(method: Method, clustering: Clustering) -> tuple[Method, Clustering]:
    """The method and the clustering of which one chooses the number of clusters."""
    if _can_choose(method):
        return replace(_any(method), choose=True), clustering
    if _can_choose(clustering):
        return method, replace(_any(clustering), choose=True)
    raise InputError(
        'clusters is "auto", but neither the method nor the clustering can choose it: give a number, or set '
        f"method.name to fedmcc-plus, or clustering.name to {AUTO_CLUSTERING}."
    )


def chooses(method: Method, clustering: Clustering) -> bool:
    """Whether the number of clusters is chosen, so that `clusters` is the largest one."""
    return any(getattr(options, "choose", False) for options in (method, clustering))


def most_clusters(stated: int, images: int) -> int:
    """The largest number of clusters to consider for this number of images."""
    return max(2, min(stated, images // IMAGES_PER_CLUSTER)) if images else stated


def _can_choose(options: object) -> bool:
    return "choose" in {field.name for field in fields(_any(options))}


def _any(options: object) -> Any:
    return options
