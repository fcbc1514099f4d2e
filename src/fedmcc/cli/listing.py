"""What is registered, as `fedmcc list` shows it: names, what they are, their options and defaults."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedmcc.data import DATASETS
from fedmcc.data.partition import PARTITIONS, PartitionOptions
from fedmcc.federation.engines import ENGINES
from fedmcc.methods import CLUSTERINGS, METHODS
from fedmcc.networks import ENCODERS
from fedmcc.runs.protocols import PROTOCOLS, Protocol
from fedmcc.views import PRESETS, Views

KINDS: dict[str, Mapping[str, Any]] = {
    "methods": METHODS,
    "clusterings": CLUSTERINGS,
    "datasets": DATASETS,
    "views": PRESETS,
    "encoders": ENCODERS,
    "partitions": PARTITIONS,
    "engines": ENGINES,
    "protocols": PROTOCOLS,
}

READ_BY = {"name": "", "alpha": "dirichlet", "uneven": "iid"}  # options that not every partition reads


def entries(kind: str) -> list[tuple[str, str, str]]:
    """Name, first sentence and options of each entry of a registry."""
    if kind == "views":
        return [(name, "a preset", _differences(views)) for name, views in PRESETS.items()]
    if kind == "partitions":
        return [(name, _sentence(deal), _sharing(name)) for name, deal in PARTITIONS.items()]
    if kind == "protocols":
        return [(name, _needs(protocol), "--seeds" * protocol.random) for name, protocol in PROTOCOLS.items()]
    return [(name, _sentence(entry), _options(entry)) for name, entry in KINDS[kind].items()]


def _sentence(entry: Any) -> str:
    return (entry.__doc__ or "").strip().splitlines()[0]


def _needs(protocol: Protocol) -> str:
    return _sentence(protocol.measure) + " Needs labels." * protocol.needs_labels


def _options(entry: Any) -> str:
    return " ".join(f"{field.name}={_shown(field.default)}" for field in fields(entry))


def _sharing(name: str) -> str:
    read = [field for field in fields(PartitionOptions) if READ_BY.get(field.name, name) == name]
    return " ".join(f"{field.name}={_shown(field.default)}" for field in read)


def _differences(views: Views) -> str:
    names = [field.name for field in fields(Views)]
    changed = [name for name in names if getattr(views, name) != getattr(Views(), name)]
    return " ".join(f"{name}={_shown(getattr(views, name))}" for name in changed)


def _shown(value: object) -> str:
    if value is MISSING:
        return "…"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
