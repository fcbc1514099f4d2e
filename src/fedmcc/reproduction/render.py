"""Writes a table as Markdown and as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import fmean

from jinja2 import Environment, StrictUndefined

from fedmcc.reproduction.captions import captions, column_name, row_name
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.reproduction.results import Results, seconds_of
from fedmcc.reproduction.table_spec import Column, Row, Table
from fedmcc.storage.atomic_files import write_atomically

LEGEND = "In percent: mean ± sample standard deviation over seeds."
LEGEND_WITH_PAPER = (
    "In percent: our mean ± sample standard deviation over seeds, the paper's figure in parentheses."
)


@dataclass(frozen=True)
class Grid:
    """Columns that are shown together: their headings, and the texts of each row."""

    heading: str
    columns: Sequence[str]
    scores: Sequence[str]
    rows: Sequence[tuple[str, bool, Sequence[str]]]  # name, whether it is not in the paper, entries


@dataclass(frozen=True)
class Page:
    """The content of a table's file."""

    title: str
    legend: str
    captions: Sequence[str]
    grids: Sequence[Grid]
    notes: Sequence[str]
    figure: str  # an <svg> element, or empty


def write_table(request: Request, cells: Sequence[Cell], results: Results, figure: str = "") -> None:
    """Write table.md and table.html with the results so far."""
    table = request.table
    keys = {cell.column for cell in cells}
    columns = [column for column in table.columns.values() if column.key in keys]
    not_run = [column for column in table.columns.values() if column.key not in keys and not column.ours]
    groups = _groups(table, columns)
    grids = [_grid(results, group, cells, heading) for heading, group in groups.items()]
    if not table.paper and (means := _mean_grid(results, columns, cells)).rows:
        grids.append(means)
    grids += [_time_grid(results, group, cells, heading) for heading, group in groups.items()]
    if not_run and table.paper:
        grids.append(_quoted_grid(results, not_run))
    page = Page(
        title=f"{table.title} ({table.paper} of the paper)" if table.paper else table.title,
        legend=LEGEND_WITH_PAPER if table.paper else LEGEND,
        captions=captions(request, cells),
        grids=grids,
        notes=results.notes,
        figure=figure,
    )
    write_atomically(request.out / "table.md", markdown(page))
    write_atomically(request.out / "table.html", html(page))


def markdown(page: Page) -> str:
    """The page as Markdown."""
    lines = [f"# {page.title}", "", page.legend, ""]
    if page.figure:
        lines += ["![Figure](figure.svg)", ""]
    for grid in page.grids:
        lines += [f"## {grid.heading}", ""] if grid.heading else []
        names = [f"{column} {score}" for column in grid.columns for score in grid.scores]
        lines += [_markdown_row("", *names), _markdown_row("---", *("---" for _ in names))]
        lines += [
            _markdown_row(f"{name} (ours)" if ours else name, *texts) for name, ours, texts in grid.rows
        ]
        lines.append("")
    lines += [f"- {caption}" for caption in page.captions]
    lines += ["", *(f"[{number}] {note}  " for number, note in enumerate(page.notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def html(page: Page) -> str:
    """The page as HTML that loads no other file."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (files("fedmcc") / "reproduction" / "table.html").read_text()
    return environment.from_string(template).render(page=page)


def _groups(table: Table, columns: Sequence[Column]) -> dict[str, list[Column]]:
    """Columns that are shown together by their heading: in our own tables, those of a data set."""
    groups: dict[str, list[Column]] = {}
    for column in columns:
        groups.setdefault("" if table.paper else column.values.get("data", ""), []).append(column)
    return groups


def _grid(results: Results, columns: Sequence[Column], cells: Sequence[Cell], heading: str) -> Grid:
    table, rows = results.table, []
    headings = [
        column_name(column, cells) + " (ours)" * (column.ours and bool(table.paper)) for column in columns
    ]
    for row in table.rows.values():
        entries = [results.entries[row.key, column.key] for column in columns]
        texts = [entry.text(score) for entry in entries for score in table.scores]
        rows.append((row_name(row, cells), row.ours and bool(table.paper), texts))
    return Grid(heading, headings, list(table.scores.values()), rows)


def _mean_grid(results: Results, columns: Sequence[Column], cells: Sequence[Cell]) -> Grid:
    """The mean of each row over the columns that are complete in every row that has scores."""
    table = results.table
    rows = [
        row for row in table.rows.values() if any(results.entries[row.key, c.key].started for c in columns)
    ]
    common = [
        column for column in columns if all(results.entries[row.key, column.key].complete for row in rows)
    ]
    texts = [
        (row_name(row, cells), False, [_mean(results, row, common, score) for score in table.scores])
        for row in rows
        if common
    ]
    counted = f"Mean over {len(common)} of {len(columns)} columns: those that are complete in all rows shown"
    return Grid(counted, [""], list(table.scores.values()), texts)


def _mean(results: Results, row: Row, columns: Sequence[Column], score: str) -> str:
    """The mean over columns, and its deviation over seeds."""
    by_seed = zip(*(results.entries[row.key, column.key].ours[score] for column in columns), strict=True)
    means = [fmean(values) for values in by_seed]
    return replace(results.entries[row.key, columns[0].key], ours={score: means}).text(score)


def _time_grid(results: Results, columns: Sequence[Column], cells: Sequence[Cell], heading: str) -> Grid:
    """The processor time of a run in each cell, without that of an encoder which another row has trained."""
    marked = bool(results.table.paper)  # rows that are not the paper's
    rows = [
        (row_name(row, cells), row.ours and marked, [seconds_of(cells, row, column) for column in columns])
        for row in results.table.rows.values()
    ]
    names = [column_name(column, cells) for column in columns]
    borrowed = any(row.features_of for row in results.table.rows.values())
    title = "Processor time of a run in seconds, mean over seeds"
    title += ", without the training of encoders of other rows" if borrowed else ""
    title += f": {heading}" if heading else ""
    return Grid(title, names, ["time"], rows)


def _quoted_grid(results: Results, columns: Sequence[Column]) -> Grid:
    """The paper's figures of columns that do not run at this scale."""
    table, rows = results.table, []
    for row in table.rows.values():
        entries = [results.entries[row.key, column.key] for column in columns]
        if any(entry.paper for entry in entries):
            texts = [entry.quoted(score) for entry in entries for score in table.scores]
            rows.append((row.name, row.ours, texts))
    names = [column.name for column in columns]
    return Grid(
        "Columns that do not run at this scale: the paper's figures", names, list(table.scores.values()), rows
    )


def _markdown_row(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
