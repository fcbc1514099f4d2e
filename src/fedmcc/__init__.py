"""Federated momentum contrastive clustering: images that cannot leave their owners, clustered together.

Public names load what they need when they are first used, so that importing fedmcc takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmcc.estimator import DeepClustering
    from fedmcc.runs.directory import load_run
    from fedmcc.runs.experiment import run

__all__ = ["DeepClustering", "load_run", "run"]

_HOMES = {
    "DeepClustering": ("fedmcc.estimator", "DeepClustering"),
    "load_run": ("fedmcc.runs.directory", "load_run"),
    "run": ("fedmcc.runs.experiment", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmcc' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
