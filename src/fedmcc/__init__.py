"""Federated momentum contrastive clustering: owners cluster their images together without sharing them.

Each public name is imported when it is first used, so `import fedmcc` loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmcc import losses
    from fedmcc.config import Config, load_config
    from fedmcc.data import DATASETS, ImageSet, Source, load_dataset
    from fedmcc.data.partition import PARTITIONS
    from fedmcc.errors import InputError
    from fedmcc.estimator import DeepClustering
    from fedmcc.federation.engines import ENGINES
    from fedmcc.methods import CLUSTERINGS, METHODS, Clustering, Method, Stage
    from fedmcc.networks import ENCODERS
    from fedmcc.networks.heads import cluster_projector, instance_projector
    from fedmcc.networks.momentum import Branch, Network
    from fedmcc.runs.directory import Run, load_run
    from fedmcc.runs.experiment import run
    from fedmcc.runs.protocols import PROTOCOLS
    from fedmcc.views import PRESETS

__all__ = [
    "CLUSTERINGS",
    "DATASETS",
    "ENCODERS",
    "ENGINES",
    "METHODS",
    "PARTITIONS",
    "PRESETS",
    "PROTOCOLS",
    "Branch",
    "Clustering",
    "Config",
    "DeepClustering",
    "ImageSet",
    "InputError",
    "Method",
    "Network",
    "Run",
    "Source",
    "Stage",
    "cluster_projector",
    "instance_projector",
    "load_config",
    "load_dataset",
    "load_run",
    "losses",
    "run",
]

_MODULES = {
    "fedmcc.config": ("Config", "load_config"),
    "fedmcc.data": ("DATASETS", "ImageSet", "Source", "load_dataset"),
    "fedmcc.data.partition": ("PARTITIONS",),
    "fedmcc.errors": ("InputError",),
    "fedmcc.estimator": ("DeepClustering",),
    "fedmcc.federation.engines": ("ENGINES",),
    "fedmcc.methods": ("CLUSTERINGS", "METHODS", "Clustering", "Method", "Stage"),
    "fedmcc.networks": ("ENCODERS",),
    "fedmcc.networks.heads": ("cluster_projector", "instance_projector"),
    "fedmcc.networks.momentum": ("Branch", "Network"),
    "fedmcc.runs.directory": ("Run", "load_run"),
    "fedmcc.runs.experiment": ("run",),
    "fedmcc.runs.protocols": ("PROTOCOLS",),
    "fedmcc.views": ("PRESETS",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "losses":
        return import_module("fedmcc.losses")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmcc' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
