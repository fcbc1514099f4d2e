"""The entries of the registries for `fedmcc list`: names, descriptions, options and defaults."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedmcc.data import DATASETS
from fedmcc.data.partition import PARTITIONS, PartitionOptions
from fedmcc.federation.engines import ENGINES
from fedmcc.methods import CLUSTERINGS, METHODS
from fedmcc.methods.about import GROUPS, About
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

# Options that only one partition uses; `name` selects the partition and is not listed.
USED_BY = {"name": "", "alpha": "dirichlet", "uneven": "iid"}


def entries(kind: str) -> list[tuple[str, str, str]]:
    """Name, description and options of each entry of a registry."""
    if kind == "views":
        return [(name, "a preset", _differences(views)) for name, views in PRESETS.items()]
    if kind == "partitions":
        return [(name, _description(entry), _partition_options(name)) for name, entry in PARTITIONS.items()]
    if kind == "protocols":
        return [
            (name, _protocol_description(protocol), "--seeds" * protocol.random)
            for name, protocol in PROTOCOLS.items()
        ]
    return [(name, _description(entry), _options(entry)) for name, entry in KINDS[kind].items()]


def groups(kind: str) -> dict[str, list[tuple[str, str, str]]]:
    """The entries of a registry by heading: methods in groups, with publication, needs and cost."""
    if kind != "methods":
        return {kind: entries(kind)}
    grouped: dict[str, list[tuple[str, str, str]]] = {f"methods: {group}": [] for group in GROUPS}
    for name, description, options in entries(kind):
        about: About | None = getattr(METHODS[name], "about", None)  # a method of your own may have none
        heading = f"methods: {about.group if about else 'other'}"
        text = f"{description}\n{about.summary}" if about else description
        grouped.setdefault(heading, []).append((name, text, options))
    return {heading: rows for heading, rows in grouped.items() if rows}


def _description(entry: Any) -> str:
    return (entry.__doc__ or "").strip().splitlines()[0]


def _protocol_description(protocol: Protocol) -> str:
    return _description(protocol.measure) + " Needs labels." * protocol.needs_labels


def _options(entry: Any) -> str:
    return " ".join(f"{field.name}={_format(field.default)}" for field in fields(entry))


def _partition_options(name: str) -> str:
    used = [field for field in fields(PartitionOptions) if USED_BY.get(field.name, name) == name]
    return " ".join(f"{field.name}={_format(field.default)}" for field in used)


def _differences(views: Views) -> str:
    names = [field.name for field in fields(Views)]
    changed = [name for name in names if getattr(views, name) != getattr(Views(), name)]
    return " ".join(f"{name}={_format(getattr(views, name))}" for name in changed)


def _format(value: object) -> str:
    if value is MISSING:
        return "…"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_format, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
