"""The paper's tables and our own: rows, columns, scores and printed figures, read from recipes/tables."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from fedmcc.errors import unknown

Toml = dict[str, Any]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Changes:
    """Changes to a recipe: whole sections are replaced first, then single keys are set."""

    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of cells, such as a data set; `values` are inserted into the names of recipes."""

    key: str
    name: str
    recipe: str | None = None
    ours: bool = False  # not in the paper
    values: Mapping[str, str] = field(default_factory=dict)
    change: Toml = field(default_factory=dict)  # changes to its cells, such as another partition


@dataclass(frozen=True)
class Row:
    """A row of cells; a row without a recipe only quotes the paper."""

    key: str
    name: str
    recipe: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None  # keys of the columns that the row has; None: all
    same_as: str | None = None  # key of the row whose runs this row scores in another way
    features_of: str | None = None  # key of the row whose trained encoders this row clusters in another way
    reads: str = "head"  # which clusters are scored: head, features or pixels
    curves: Mapping[str, str] = field(default_factory=dict)  # keys of metrics.jsonl and names of their curves
    ours: bool = False  # not in the paper
    note: str = ""
    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)
    paper: Mapping[str, list[float]] = field(default_factory=dict)  # by column, in percent, a value per score

    @property
    def changes(self) -> Changes:
        """Changes to the row's recipe."""
        return Changes(self.replace, self.change)


@dataclass(frozen=True)
class TableScale:
    """What a table runs at a scale, in addition to the changes that the scale makes in all tables."""

    columns: tuple[str, ...] | None = None  # keys of the columns that run; None: all
    rows: tuple[str, ...] | None = None  # keys of the rows that run; None: all
    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)
    by_row: Mapping[str, Toml] = field(default_factory=dict)  # changes to the cells of a row


@dataclass(frozen=True)
class Misprint:
    """A printed figure that is wrong: it is quoted as printed, with a note."""

    row: str
    column: str
    text: str


@dataclass(frozen=True)
class Table:
    """A table or a figure, of the paper or our own."""

    key: str
    title: str
    paper: str  # its number in the paper; empty: it is not in the paper
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]
    protocol: str = "clustering"
    kind: str = "table"  # or curves, tsne
    scores: Mapping[str, str] = field(default_factory=dict)  # keys and headings
    explanation: str = ""
    misprints: tuple[Misprint, ...] = ()
    scales: Mapping[str, TableScale] = field(default_factory=dict)

    def trained(self) -> Iterator[tuple[Row, Column]]:
        """Every row and column with a recipe, without rows that use the runs of another row."""
        for row in self.rows.values():
            for column in self.columns.values():
                exists = row.columns is None or column.key in row.columns
                if exists and row.same_as is None and (row.recipe or column.recipe):
                    yield row, column


def recipes_folder() -> Path:
    """The folder of recipes: inside an installed package, beside `src` in a checkout."""
    package = Path(str(files("fedmcc")))
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def table_names() -> list[str]:
    """The keys of all tables and figures."""
    return sorted(path.stem for path in (recipes_folder() / "tables").glob("*.toml"))


def load_table(key: str) -> Table:
    """The table or figure of this key."""
    if key not in table_names():
        raise unknown("table", key, table_names())
    content = dict(read_toml(recipes_folder() / "tables" / f"{key}.toml"))
    rows = {name: _part(Row, row | {"key": name}) for name, row in content.pop("rows").items()}
    columns = {name: _part(Column, column | {"key": name}) for name, column in content.pop("columns").items()}
    scales = {name: _part(TableScale, scale) for name, scale in content.pop("scales").items()}
    for row in rows.values():
        source = rows[row.features_of] if row.features_of else None
        assert source is None or not (source.features_of or source.same_as), f"{row.key} needs a trained row."
    misprints = tuple(Misprint(**misprint) for misprint in content.pop("misprints", ()))
    return Table(key=key, rows=rows, columns=columns, scales=scales, misprints=misprints, **content)


def read_shared(name: str) -> Toml:
    """A file that all tables share: `scales` or `datasets`."""
    return read_toml(recipes_folder() / "tables" / "shared" / f"{name}.toml")


@cache
def read_toml(path: Path) -> Toml:
    """The content of a TOML file that ships with the package; not to be changed."""
    return tomllib.loads(path.read_text())


def _part(kind: type[Part], content: Toml) -> Part:
    """A row, a column or a scale; keys that are not its fields become `values`."""
    names = {part.name for part in fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in content.items() if key not in names}
    known = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in content.items()
        if key in names
    }
    return kind(**known, **({"values": values} if values else {}))
