"""Collects the scores of finished cells over seeds, beside the figures that the paper prints."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmcc.reproduction.cells import TIME_FILE, Cell
from fedmcc.reproduction.table_spec import Column, Row, Table
from fedmcc.runs import protocols


@dataclass(frozen=True)
class Entry:
    """One place of the table: our scores in percent, the paper's, and why ours are missing."""

    ours: Mapping[str, Sequence[float]]  # score: a value per finished seed
    paper: Mapping[str, float]
    seeds: int = 0  # planned
    missing: str = ""  # shown instead of our scores if there are none
    notes: tuple[int, ...] = ()  # their numbers

    @property
    def started(self) -> bool:
        """Whether a seed is finished."""
        return any(self.ours.values())

    @property
    def complete(self) -> bool:
        """Whether all planned seeds are finished and have all scores."""
        return self.seeds > 0 and all(len(values) == self.seeds for values in self.ours.values())

    def text(self, score: str) -> str:
        """`91.2 ± 0.5 (87.3)`: ours, and the paper's in parentheses."""
        printed = f" ({self.paper[score]})" if score in self.paper else ""
        return f"{self._ours(score)}{printed}{self._marks}"

    def quoted(self, score: str) -> str:
        """Only the figure that the paper prints."""
        return f"{self.paper.get(score, '–')}{self._marks}"

    @property
    def _marks(self) -> str:
        return "".join(f" [{number}]" for number in self.notes)

    def _ours(self, score: str) -> str:
        values = self.ours.get(score, ())
        if not values:
            return self.missing or "–"
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        finished = f", {len(values)} of {self.seeds} seeds" if len(values) < self.seeds else ""
        return f"{statistics.fmean(values):.1f}{spread}{finished}"


@dataclass(frozen=True)
class Results:
    """The entries of a table by row and column, and its notes in the order of their numbers."""

    table: Table
    entries: Mapping[tuple[str, str], Entry]
    notes: tuple[str, ...]


def collect(table: Table, cells: Sequence[Cell], failures: Mapping[str, str]) -> Results:
    """The results so far; `failures` has the reason for each failed cell by its name."""
    misprints = [misprint.text for misprint in table.misprints]
    reasons = [f"{name}: {reason}" for name, reason in failures.items()]
    notes = list(dict.fromkeys([*misprints, *reasons]))
    entries = {}
    for row in table.rows.values():
        for column in table.columns.values():
            key = row.same_as or row.key, column.key
            matching = [cell for cell in cells if (cell.row, cell.column) == key]
            texts = [m.text for m in table.misprints if (m.row, m.column) == (row.key, column.key)]
            texts += [f"{cell.name}: {failures[cell.name]}" for cell in matching if cell.name in failures]
            numbers = tuple(sorted({notes.index(text) + 1 for text in texts}))
            entries[row.key, column.key] = _entry(table, row, column, matching, numbers)
    return Results(table, entries, tuple(notes))


def _entry(table: Table, row: Row, column: Column, cells: Sequence[Cell], notes: tuple[int, ...]) -> Entry:
    finished = [scores_of(cell, row) for cell in cells if cell.done]
    ours = {key: [100 * scores[key] for scores in finished if key in scores] for key in table.scores}
    printed = dict(zip(table.scores, row.paper.get(column.key, ()), strict=False))
    paper = {key: value for key, value in printed.items() if not math.isnan(value)}
    return Entry(ours, paper, len(cells), _missing(row, column, cells, bool(notes)), notes)


def scores_of(cell: Cell, row: Row) -> dict[str, float]:
    """The scores of a finished cell for a row, which selects the clusters that are scored."""
    if cell.protocol == "clustering":
        scores: dict[str, float] = cell.run.read_json("scores.json")["scores"].get(row.reads, {})
        return scores
    measured = cell.run.read_json(protocols.FILE)[cell.protocol]
    return {key: value["mean"] for key, value in measured.items()}


def seconds_of(cells: Sequence[Cell], row: Row, column: Column) -> str:
    """Mean processor time of the finished cells of a row and a column, or a dash if none is known."""
    key = row.same_as or row.key, column.key
    finished = [cell for cell in cells if (cell.row, cell.column) == key and cell.done]
    times = [cell.run.read_json(TIME_FILE).get("processor_seconds") for cell in finished]
    known = [float(seconds) for seconds in times if isinstance(seconds, int | float)]
    return f"{statistics.fmean(known):,.0f}" if known else "–"


def _missing(row: Row, column: Column, cells: Sequence[Cell], has_notes: bool) -> str:
    if row.note:
        return row.note
    if row.columns is not None and column.key not in row.columns:
        return ""
    if not cells:
        return "not run"
    return "failed" if has_notes and not any(cell.done for cell in cells) else "not yet"
