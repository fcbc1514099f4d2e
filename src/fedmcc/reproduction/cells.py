"""The cells of a table at a scale: what runs, where, and whether a folder already holds something else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmcc import config
from fedmcc.errors import InputError
from fedmcc.reproduction.scales import cell_config, columns_at
from fedmcc.reproduction.table_spec import Column, Row, Table
from fedmcc.runs import protocols
from fedmcc.runs.directory import Run, load_run, require_unused
from fedmcc.storage.atomic_files import make_folder, write_atomically

PLAN = "plan.json"
PLANE = "tsne.csv"  # in a cell's folder


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    table: Table
    scale: str
    out: Path
    seeds: int = 1
    jobs: int = 1
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}: give 1 or more.")
        if any(text.partition("=")[0].strip() == "seed" for text in self.settings):
            raise InputError("A table runs the seeds from 0: say how many with --seeds, and leave seed out.")


@dataclass(frozen=True)
class Cell:
    """One run of a table: a row, a column and a seed."""

    row: str
    column: str
    seed: int
    path: Path
    config: config.Config
    protocol: str

    @property
    def name(self) -> str:
        """What the screen and its folder call it."""
        return self.path.name

    @property
    def run(self) -> Run:
        """Its run directory, which may not exist yet."""
        return Run(self.path)

    @property
    def measured(self) -> bool:
        """Whether its protocol needs no more than the run's own scores, or has been gone through."""
        if self.protocol == "tsne":
            return (self.path / PLANE).exists()
        return self.protocol == "clustering" or self.protocol in self.run.read_json(protocols.FILE)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.run.finished and not self.fault and self.measured

    @property
    def fault(self) -> str:
        """Why its folder can be neither read nor gone on with, or nothing."""
        try:
            if self.run.config_file.exists():
                load_run(self.path)
            elif self.path.exists():
                require_unused(self.path)
            sound = self._has_scores() and self._has_measures()
        except InputError:
            sound = False
        return "" if sound else f"{self.path} is no cell of this fedmcc, or damaged: delete it and try again."

    def _has_scores(self) -> bool:
        return not self.run.finished or isinstance(self.run.read_json("scores.json").get("scores"), dict)

    def _has_measures(self) -> bool:
        measured = self.run.read_json(protocols.FILE).get(self.protocol, {})
        values = list(measured.values()) if isinstance(measured, dict) else [measured]
        return all(isinstance(value, dict) and isinstance(value.get("mean"), int | float) for value in values)


def cells(request: Request) -> list[Cell]:
    """All cells, seed by seed, so that a whole table is there as early as possible."""
    places = list(places_at(request.table, request.scale))
    made = {
        (row.key, column.key): cell_config(request.table, row, column, request.scale, request.settings)
        for row, column in places
    }
    return [
        _cell(request, row, column, made[row.key, column.key], seed)
        for seed in range(request.seeds)
        for row, column in places
    ]


def places_at(table: Table, scale: str) -> list[tuple[Row, Column]]:
    """The places of the table that run at a scale."""
    extent, columns = table.scales.get(scale), columns_at(table, scale)
    rows = tuple(table.rows) if extent is None or extent.rows is None else extent.rows
    return [place for place in table.places() if place[0].key in rows and place[1].key in columns]


def settle(request: Request, planned: Sequence[Cell]) -> None:
    """Write down what the folder is for, or refuse one that is for something else."""
    path = request.out / PLAN
    if not path.exists() and _occupied(request.out):
        raise InputError(f"{request.out} is not empty and has no {PLAN}: choose another folder with --out.")
    make_folder(request.out / "cells", "the cells of the table")
    recipes = {f"{cell.row}-{cell.column}": _recipe(cell.config) for cell in planned}
    wanted = {"table": request.table.key, "scale": request.scale, "recipes": recipes}
    if path.exists():
        _refuse_another(path, wanted)
    write_atomically(path, json.dumps(wanted, indent=2) + "\n")


def _occupied(out: Path) -> bool:
    """Whether a folder holds more than a call that was killed before it wrote its plan leaves behind."""
    found = [entry.relative_to(out).as_posix() for entry in out.rglob("*")]
    return any(name != "cells" and not name.startswith(f".{PLAN}.") for name in found)


def _refuse_another(path: Path, wanted: Mapping[str, object]) -> None:
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or not wanted.keys() <= found.keys():
        raise InputError(f"{path} is damaged: choose another folder with --out.")
    for key in ("table", "scale"):
        if found[key] != wanted[key]:
            raise InputError(
                f"{path.parent} holds {found['table']} at scale {found['scale']}, "
                f"not {wanted['table']} at scale {wanted['scale']}: choose another folder with --out."
            )
    if found["recipes"] != wanted["recipes"]:
        raise InputError(
            f"{path.parent} was begun with other recipes or settings: repeat those, "
            "or choose another folder with --out."
        )


def _cell(request: Request, row: Row, column: Column, made: config.Config, seed: int) -> Cell:
    path = request.out / "cells" / f"{row.key}-{column.key}-seed{seed}"
    general = replace(made.general, seed=seed)
    return Cell(row.key, column.key, seed, path, replace(made, general=general), request.table.protocol)


def _recipe(made: config.Config) -> str:
    """What may not change between two calls; threads and seeds may."""
    return config.dump(replace(made, general=replace(made.general, seed=0, threads=None)))
