"""The configuration of a cell at a scale: smoke, small, or the paper's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmcc import config
from fedmcc.errors import InputError, unknown
from fedmcc.reproduction.table_spec import (
    Changes,
    Column,
    Row,
    Table,
    Toml,
    read_shared,
    read_toml,
    recipes_folder,
)

SCALES = ("smoke", "small", "paper")
CHANGES_BY_NAME = {  # section of a recipe: key of a scale that has changes for each name in that section
    "data": "datasets",
    "method": "methods",
    "clustering": "clusterings",
}


def cell_config(table: Table, row: Row, column: Column, scale: str, settings: Sequence[str]) -> config.Config:
    """The recipe of a cell with the changes of row, scale, column and `--set`, in this order."""
    content = _changed(read_toml(recipe_file(row, column)), row.changes)
    if scale != "paper":
        content = _scaled(content, read_shared("scales")[scale])
    at_scale = table.scales.get(scale)
    if at_scale is not None:
        content = _changed(content, Changes(at_scale.replace, at_scale.change))
        content = _merged(content, at_scale.by_row.get(row.key, {}))
    content = _merged(content, column.change)
    return config.parse(config.apply_settings(content, settings))


def checked_scale(scale: str) -> str:
    """The scale itself; raise InputError if it does not exist."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


def cells_at(table: Table, scale: str) -> list[tuple[Row, Column]]:
    """The rows and columns that run at a scale."""
    at_scale = table.scales.get(scale)
    rows = tuple(table.rows) if at_scale is None or at_scale.rows is None else at_scale.rows
    columns = tuple(table.columns) if at_scale is None or at_scale.columns is None else at_scale.columns
    return [(row, column) for row, column in table.trained() if row.key in rows and column.key in columns]


def recipe_file(row: Row, column: Column) -> Path:
    """The recipe of a cell."""
    pattern = row.recipe or column.recipe
    if pattern is None:
        raise InputError(f"The row {row.name} cannot run: it has no recipe and only quotes the paper.")
    return recipes_folder() / f"{pattern.format(**row.values, **column.values)}.toml"


def _scaled(content: Toml, scale: Toml) -> Toml:
    """Apply the scale's own changes, then those for the resulting data set, method and clustering."""
    replace = {
        key: value for key, value in scale.get("replace", {}).items() if not _kept(content, key, scale)
    }
    content = _changed(content, Changes(replace, scale.get("change", {})))
    for section, by_name in CHANGES_BY_NAME.items():
        name = content.get(section, {}).get("name", "")
        content = _merged(content, scale.get(by_name, {}).get(name, {}))
    return content


def _kept(content: Toml, section: str, scale: Toml) -> bool:
    """Whether the scale does not replace a section of this name, such as an encoder without weights."""
    return content.get(section, {}).get("name", "") in scale.get("keep", {}).get(section, ())


def _changed(content: Toml, changes: Changes) -> Toml:
    return _merged(content | changes.replace, changes.change)


def _merged(content: Toml, changes: Mapping[str, object]) -> Toml:
    """The content with the changes, merged section by section."""
    merged = dict(content)
    for key, value in changes.items():
        section = merged.get(key)
        merged[key] = (
            _merged(section, value) if isinstance(section, dict) and isinstance(value, dict) else value
        )
    return merged
