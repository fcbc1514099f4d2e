"""The cells of a table at a scale: their runs, their folders, and the plan that the folder records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmcc import config
from fedmcc.errors import InputError, unknown
from fedmcc.reproduction.scales import cell_config, cells_at
from fedmcc.reproduction.table_spec import Column, Row, Table
from fedmcc.runs import protocols
from fedmcc.runs.directory import Run, load_run, require_unused
from fedmcc.storage.atomic_files import make_folder, write_atomically

PLAN_FILE = "plan.json"
TSNE_FILE = "tsne.csv"  # in a cell's folder
TIME_FILE = "time.json"  # in a cell's folder: what the cell took, unless it was copied or resumed


@dataclass(frozen=True)
class Request:
    """The options of `fedmcc reproduce`."""

    table: Table
    scale: str
    out: Path
    seeds: int = 1
    jobs: int = 1
    settings: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()  # keys of the rows to run; empty: all
    columns: tuple[str, ...] = ()  # keys of the columns to run; empty: all

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}: give 1 or more.")
        if any(text.partition("=")[0].strip() == "seed" for text in self.settings):
            raise InputError("A table runs the seeds from 0: set their number with --seeds, not with --set.")
        for kind, known in (("row", self.table.rows), ("column", self.table.columns)):
            for key in getattr(self, f"{kind}s"):
                if key not in known:
                    raise unknown(f"{kind} of {self.table.key}", key, known)

    @property
    def chosen_rows(self) -> set[str]:
        """Keys of the rows to run, with those that train the encoders of others."""
        rows = set(self.rows or self.table.rows)
        return rows | {source for key in rows if (source := self.table.rows[key].features_of)}

    @property
    def chosen_columns(self) -> set[str]:
        """Keys of the columns to run."""
        return set(self.columns or self.table.columns)


@dataclass(frozen=True)
class Cell:
    """One run of a table: a row, a column and a seed."""

    row: str
    column: str
    seed: int
    path: Path
    config: config.Config
    protocol: str
    encoder_of: Path | None = None  # the folder of the cell whose trained encoder this one clusters

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return self.path.name

    @property
    def run(self) -> Run:
        """The run directory, which may not exist yet."""
        return Run(self.path)

    @property
    def evaluated(self) -> bool:
        """Whether the scores of the protocol exist; `clustering` needs only those of the run."""
        return self.protocol == "clustering" or self.protocol in self.run.read_json(protocols.FILE)

    @property
    def done(self) -> bool:
        """Whether the run is finished, valid and evaluated."""
        return self.run.finished and not self.error and self.evaluated

    @property
    def error(self) -> str:
        """Why the cell's folder can be neither read nor resumed, or an empty string."""
        try:
            if self.run.config_file.exists():
                load_run(self.path)
            elif self.path.exists():
                require_unused(self.path)
            valid = self._has_valid_scores() and self._has_valid_evaluation()
        except InputError:
            valid = False
        if valid:
            return ""
        return (
            f"{self.path} is damaged or was not written by this version of fedmcc: delete it and try again."
        )

    def _has_valid_scores(self) -> bool:
        return not self.run.finished or isinstance(self.run.read_json("scores.json").get("scores"), dict)

    def _has_valid_evaluation(self) -> bool:
        scores = self.run.read_json(protocols.FILE).get(self.protocol, {})
        values = list(scores.values()) if isinstance(scores, dict) else [scores]
        return all(isinstance(value, dict) and isinstance(value.get("mean"), int | float) for value in values)


def plan_cells(request: Request) -> list[Cell]:
    """All cells, seed by seed, so that the table is complete for one seed as early as possible."""
    pairs = cells_at(request.table, request.scale)
    if not pairs:
        raise InputError(f"{request.table.key} has no cells at scale {request.scale}: choose another scale.")
    planned = [(row, column, found) for row, column in pairs if (found := _config(request, row, column))]
    return [
        _cell(request, row, column, recipe, seed)
        for seed in range(request.seeds)
        for row, column, recipe in planned
    ]


def _config(request: Request, row: Row, column: Column) -> config.Config | None:
    """The recipe of a cell; None for one that is not to be run and does not have the changed options."""
    try:
        return cell_config(request.table, row, column, request.scale, request.settings)
    except InputError:
        if row.key in request.chosen_rows and column.key in request.chosen_columns:
            raise
        return None


def selected(request: Request, cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the rows and columns to run; the table also shows what was run before."""
    rows, columns = request.chosen_rows, request.chosen_columns
    chosen = [cell for cell in cells if cell.row in rows and cell.column in columns]
    if not chosen:
        raise InputError("No cell at this scale is in these rows and columns: leave out --row or --column.")
    return chosen


def _cell(request: Request, row: Row, column: Column, recipe: config.Config, seed: int) -> Cell:
    path = _folder(request, row.key, column, seed)
    encoder_of = _folder(request, row.features_of, column, seed) if row.features_of else None
    return Cell(row.key, column.key, seed, path, _seeded(recipe, seed), request.table.protocol, encoder_of)


def _folder(request: Request, row: str, column: Column, seed: int) -> Path:
    return request.out / "cells" / f"{row}-{column.key}-seed{seed}"


def _seeded(recipe: config.Config, seed: int) -> config.Config:
    """The configuration with another seed of the run, which also draws the classes of a thinned data set."""
    data = recipe.data if recipe.data.thinned == 1 else replace(recipe.data, thinning_seed=seed)
    return replace(recipe, general=replace(recipe.general, seed=seed), data=data)


def write_plan(request: Request, cells: Sequence[Cell]) -> None:
    """Record in the output folder what it is for; refuse a folder that is for something else.

    Cells may be added to a folder: other rows or columns of its table, and more seeds.
    """
    path = request.out / PLAN_FILE
    if not path.exists() and _in_use(request.out):
        raise InputError(
            f"{request.out} is not empty and has no {PLAN_FILE}: choose another folder with --out."
        )
    make_folder(request.out / "cells", "the cells of the table")
    recipes = {f"{cell.row}-{cell.column}": recipe_text(cell) for cell in cells}
    plan = {"table": request.table.key, "scale": request.scale, "recipes": recipes}
    if path.exists():
        plan["recipes"] = _require_same_plan(path, plan, recipes) | recipes
    write_atomically(path, json.dumps(plan, indent=2) + "\n")


def _in_use(out: Path) -> bool:
    """Whether a folder holds more than a command leaves that was killed before it wrote its plan."""
    names = [entry.relative_to(out).as_posix() for entry in out.rglob("*")]
    return any(name != "cells" and not name.startswith(f".{PLAN_FILE}.") for name in names)


def _require_same_plan(path: Path, plan: Mapping[str, object], recipes: Mapping[str, str]) -> dict[str, str]:
    """The recipes that the folder records; raise if it is for another table, scale, recipe or setting."""
    try:
        existing = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        existing = None
    if not isinstance(existing, dict) or not plan.keys() <= existing.keys():
        raise InputError(f"{path} is damaged: choose another folder with --out.")
    for key in ("table", "scale"):
        if existing[key] != plan[key]:
            raise InputError(
                f"{path.parent} holds {existing['table']} at scale {existing['scale']}, "
                f"not {plan['table']} at scale {plan['scale']}: choose another folder with --out."
            )
    known: dict[str, str] = existing["recipes"]
    if any(known.get(name, recipe) != recipe for name, recipe in recipes.items()):
        raise InputError(
            f"{path.parent} was started with other recipes or settings: repeat those, "
            "or choose another folder with --out."
        )
    return known


def recipe_text(cell: Cell) -> str:
    """The part of a configuration that must not change between two commands: all but threads and seed."""
    fixed = _seeded(cell.config, 0)
    text = config.dump(replace(fixed, general=replace(fixed.general, threads=None)))
    if cell.encoder_of is None:
        return text
    return f"{text}# with the encoder of {cell.encoder_of.name.removesuffix(f'-seed{cell.seed}')}\n"
