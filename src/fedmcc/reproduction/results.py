"""What finished cells say, over seeds, beside what the paper prints."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.table_spec import Column, Row, Table
from fedmcc.runs import protocols


@dataclass(frozen=True)
class Entry:
    """A place of the table: our scores by seed in percent, the paper's, and why there are none of ours."""

    ours: Mapping[str, Sequence[float]]  # score: a value per finished seed
    paper: Mapping[str, float]
    wanted: int = 0  # seeds
    absence: str = ""
    marks: tuple[int, ...] = ()  # numbers of notes

    def text(self, score: str) -> str:
        """`91.2 ± 0.5 (87.3)`: ours, and the paper's in parentheses."""
        printed = f" ({self.paper[score]})" if score in self.paper else ""
        return f"{self._ours(score)}{printed}{self._marks}"

    def quoted(self, score: str) -> str:
        """What the paper prints, alone."""
        return f"{self.paper.get(score, '–')}{self._marks}"

    @property
    def _marks(self) -> str:
        return "".join(f" [{mark}]" for mark in self.marks)

    def _ours(self, score: str) -> str:
        values = self.ours.get(score, ())
        if not values:
            return self.absence or "–"
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        missing = f", {len(values)} of {self.wanted} seeds" if len(values) < self.wanted else ""
        return f"{statistics.fmean(values):.1f}{spread}{missing}"


@dataclass(frozen=True)
class Results:
    """A table as far as it is: its entries by row and column, and notes in the order of their numbers."""

    table: Table
    entries: Mapping[tuple[str, str], Entry]
    notes: tuple[str, ...]


def collect(table: Table, cells: Sequence[Cell], failures: Mapping[str, str]) -> Results:
    """All that can be said of the table now; `failures` are reasons by the name of a cell."""
    notes = [misprint.text for misprint in table.misprints]
    reasons = list(dict.fromkeys(f"{name}: {reason}" for name, reason in failures.items()))
    unique = list(dict.fromkeys([*notes, *reasons]))
    entries = {}
    for row in table.rows.values():
        for column in table.columns.values():
            own = [cell for cell in cells if (cell.row, cell.column) == (row.same_as or row.key, column.key)]
            texts = [m.text for m in table.misprints if (m.row, m.column) == (row.key, column.key)]
            texts += [f"{cell.name}: {failures[cell.name]}" for cell in own if cell.name in failures]
            marks = tuple(sorted({unique.index(text) + 1 for text in texts}))
            entries[row.key, column.key] = _entry(table, row, column, own, marks)
    return Results(table, entries, tuple(unique))


def _entry(table: Table, row: Row, column: Column, own: Sequence[Cell], marks: tuple[int, ...]) -> Entry:
    found = [scores_of(cell, row) for cell in own if cell.done]
    ours = {key: [100 * scores[key] for scores in found if key in scores] for key in table.scores}
    printed = dict(zip(table.scores, row.paper.get(column.key, ()), strict=False))
    paper = {key: value for key, value in printed.items() if not math.isnan(value)}
    return Entry(ours, paper, len(own), _absence(row, column, own, bool(marks)), marks)


def scores_of(cell: Cell, row: Row) -> dict[str, float]:
    """The scores of a finished cell, as the row reads it."""
    if cell.protocol in ("clustering", "tsne"):
        found: dict[str, float] = cell.run.read_json("scores.json")["scores"].get(row.reads, {})
        return found
    measured = cell.run.read_json(protocols.FILE)[cell.protocol]
    return {key: value["mean"] for key, value in measured.items()}


def _absence(row: Row, column: Column, own: Sequence[Cell], marked: bool) -> str:
    if row.note:
        return row.note
    if row.columns is not None and column.key not in row.columns:
        return ""
    if not own:
        return "not run"
    return "failed" if marked and not any(cell.done for cell in own) else "not yet"
