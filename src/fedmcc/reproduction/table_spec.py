"""What a table of the paper is: rows, columns, scores and the printed figures, read from recipes/tables."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from fedmcc.errors import unknown

Toml = dict[str, Any]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Changes:
    """What turns a recipe into another: whole sections first, then single keys."""

    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of cells, such as a data set; `values` fill in the names of recipes."""

    key: str
    name: str
    recipe: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of cells; one without a recipe is quoted from the paper alone."""

    key: str
    name: str
    recipe: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None  # those that the row has; None: all
    same_as: str | None = None  # the row whose runs this one reads in another way
    reads: str = "head"  # whose clusters are scored: head, features or pixels
    curves: Mapping[str, str] = field(default_factory=dict)  # keys of metrics.jsonl and their names
    ours: bool = False  # not in the paper
    note: str = ""
    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)
    paper: Mapping[str, list[float]] = field(default_factory=dict)  # column: percent, in order of the scores

    @property
    def changes(self) -> Changes:
        """What distinguishes the row from its recipe."""
        return Changes(self.replace, self.change)


@dataclass(frozen=True)
class Extent:
    """What a table runs at a scale, beyond what the scale changes everywhere."""

    columns: tuple[str, ...] | None = None  # those that run; None: all
    rows: tuple[str, ...] | None = None  # the same
    replace: Toml = field(default_factory=dict)
    change: Toml = field(default_factory=dict)
    by_row: Mapping[str, Toml] = field(default_factory=dict)  # changes of a row's cells


@dataclass(frozen=True)
class Misprint:
    """A printed figure that is not what it says: quoted as printed, and marked."""

    row: str
    column: str
    text: str


@dataclass(frozen=True)
class Table:
    """A table or a figure of the paper."""

    key: str
    title: str
    paper: str  # which one it is
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]
    protocol: str = "clustering"
    kind: str = "table"  # or curves, tsne
    scores: Mapping[str, str] = field(default_factory=dict)  # keys and headings
    explanation: str = ""
    misprints: tuple[Misprint, ...] = ()
    scales: Mapping[str, Extent] = field(default_factory=dict)

    def places(self) -> Iterator[tuple[Row, Column]]:
        """Every place of the table that has a recipe, rows that read the runs of others left out."""
        for row in self.rows.values():
            for column in self.columns.values():
                has = row.columns is None or column.key in row.columns
                if has and row.same_as is None and (row.recipe or column.recipe):
                    yield row, column


def home() -> Path:
    """The folder of recipes: inside an installed package, beside `src` in a checkout."""
    package = Path(str(files("fedmcc")))
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def names() -> list[str]:
    """Every table and figure there is."""
    return sorted(path.stem for path in (home() / "tables").glob("*.toml"))


def load_table(key: str) -> Table:
    """The table of this name."""
    if key not in names():
        raise unknown("table", key, names())
    content = read_toml(home() / "tables" / f"{key}.toml")
    rows = {name: _part(Row, row | {"key": name}) for name, row in content.pop("rows").items()}
    columns = {name: _part(Column, column | {"key": name}) for name, column in content.pop("columns").items()}
    scales = {name: _part(Extent, extent) for name, extent in content.pop("scales").items()}
    misprints = tuple(Misprint(**misprint) for misprint in content.pop("misprints", ()))
    return Table(key=key, rows=rows, columns=columns, scales=scales, misprints=misprints, **content)


def shared(name: str) -> Toml:
    """What all tables have in common: scales, datasets."""
    return read_toml(home() / "tables" / "shared" / f"{name}.toml")


def read_toml(path: Path) -> Toml:
    """A file that ships with the program."""
    return tomllib.loads(path.read_text())


def _part(kind: type[Part], content: Toml) -> Part:
    """A row or a column; keys that it does not know fill in the names of recipes."""
    known = {part.name for part in fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in content.items() if key not in known}
    own = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items() if key in known}
    return kind(**own, **({"values": values} if values else {}))
