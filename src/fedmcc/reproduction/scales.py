"""From the paper's recipe to the configuration of a cell at a scale: smoke, small, or the paper's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmcc import config
from fedmcc.errors import InputError, unknown
from fedmcc.reproduction.table_spec import Changes, Column, Row, Table, Toml, home, read_toml, shared

SCALES = ("smoke", "small", "paper")
BY_NAME = {"data": "datasets", "method": "methods", "clustering": "clusterings"}  # section: key of a scale


def cell_config(table: Table, row: Row, column: Column, scale: str, settings: Sequence[str]) -> config.Config:
    """The configuration of a cell: recipe, row, scale, then the person's own settings."""
    content = _changed(read_toml(recipe_file(row, column)), row.changes)
    if scale != "paper":
        content = _scaled(content, shared("scales")[scale])
    extent = table.scales.get(scale)
    if extent is not None:
        content = _changed(content, Changes(extent.replace, extent.change))
        content = _merged(content, extent.by_row.get(row.key, {}))
    return config.parse(config.apply_settings(content, settings))


def known(scale: str) -> str:
    """The name of a scale, or a sentence on those there are."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


def columns_at(table: Table, scale: str) -> tuple[str, ...]:
    """The columns that this scale runs."""
    extent = table.scales.get(scale)
    return tuple(table.columns) if extent is None or extent.columns is None else extent.columns


def recipe_file(row: Row, column: Column) -> Path:
    """The recipe of a cell."""
    pattern = row.recipe or column.recipe
    if pattern is None:
        raise InputError(f"The row {row.name} has no recipe: it is quoted from the paper.")
    return home() / f"{pattern.format(**row.values, **column.values)}.toml"


def _scaled(content: Toml, scale: Toml) -> Toml:
    """The scale's changes, and those for the data set, the method and the clustering that are then named."""
    content = _changed(content, Changes(scale.get("replace", {}), scale.get("change", {})))
    for section, by_name in BY_NAME.items():
        name = content.get(section, {}).get("name", "")
        content = _merged(content, scale.get(by_name, {}).get(name, {}))
    return content


def _changed(content: Toml, changes: Changes) -> Toml:
    return _merged(content | changes.replace, changes.change)


def _merged(content: Toml, changes: Mapping[str, object]) -> Toml:
    """The content with the keys of the changes, section by section."""
    merged = dict(content)
    for key, value in changes.items():
        own = merged.get(key)
        merged[key] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return merged
