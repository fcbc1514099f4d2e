"""The number of clusters as a choice of the clustering: `clusters = "auto"`."""

from dataclasses import fields, replace
from typing import Any

from fedmcc.errors import InputError
from fedmcc.methods.base import Clustering

AUTO = "auto"  # in place of the number of clusters
MOST_CLUSTERS = 30  # that `auto` considers; `clusters` and `choose` in a recipe set another number
IMAGES_PER_CLUSTER = 10  # at least, on average


def choosing(clustering: Clustering) -> Clustering:
    """The clustering, which chooses the number of clusters."""
    options: Any = clustering
    if "choose" not in {field.name for field in fields(options)}:
        raise InputError(
            "clusters is 'auto', but this clustering cannot choose it: give a number, or set clustering.name "
            "to informative after a method that learns features."
        )
    chosen: Clustering = replace(options, choose=True)
    return chosen


def chooses(clustering: Clustering) -> bool:
    """Whether the number of clusters is chosen, so that `clusters` is the largest one."""
    return getattr(clustering, "choose", False)


def most_clusters(stated: int, images: int) -> int:
    """The largest number of clusters to consider for this number of images."""
    return max(2, min(stated, images // IMAGES_PER_CLUSTER)) if images else stated
