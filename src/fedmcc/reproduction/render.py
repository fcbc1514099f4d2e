"""A table as Markdown and as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from fedmcc.reproduction.captions import facts, heading, row_name
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.reproduction.results import Results
from fedmcc.reproduction.table_spec import Column
from fedmcc.storage.atomic_files import write_atomically

LEGEND = (
    "In percent: ours, mean ± sample standard deviation over seeds; in parentheses what the paper prints."
)


@dataclass(frozen=True)
class Grid:
    """Columns that are shown together: a heading, and a line of texts per row."""

    heading: str
    columns: Sequence[str]
    scores: Sequence[str]
    lines: Sequence[tuple[str, bool, Sequence[str]]]  # the row's name, whether it is ours, its entries


@dataclass(frozen=True)
class Page:
    """All that a table's file says."""

    title: str
    legend: str
    facts: Sequence[str]
    grids: Sequence[Grid]
    notes: Sequence[str]
    figure: str  # an SVG, or nothing
    version: str


def write_table(request: Request, cells: Sequence[Cell], results: Results, figure: str = "") -> None:
    """table.md and table.html, as far as the table is."""
    table = request.table
    run = {cell.column for cell in cells}
    shown = [column for column in table.columns.values() if column.key in run]
    others = [column for column in table.columns.values() if column.key not in run]
    grids = [_grid(results, shown, cells)]
    if others:
        grids.append(_quoted(results, others))
    page = Page(
        title=f"{table.title} ({table.paper} of the paper)",
        legend=LEGEND,
        facts=facts(request, cells),
        grids=grids,
        notes=results.notes,
        figure=figure,
        version=version("fedmcc"),
    )
    write_atomically(request.out / "table.md", markdown(page))
    write_atomically(request.out / "table.html", html(page))


def markdown(page: Page) -> str:
    """The page as Markdown."""
    lines = [f"# {page.title}", "", page.legend, ""]
    if page.figure:
        lines += ["![The figure](figure.svg)", ""]
    for grid in page.grids:
        lines += [f"## {grid.heading}", ""] if grid.heading else []
        names = [f"{column} {score}" for column in grid.columns for score in grid.scores]
        lines += [_line("", *names), _line("---", *("---" for _ in names))]
        lines += [_line(f"{name} (ours)" if ours else name, *texts) for name, ours, texts in grid.lines]
        lines.append("")
    lines += [f"- {fact}" for fact in page.facts]
    lines += ["", *(f"[{number}] {note}  " for number, note in enumerate(page.notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def html(page: Page) -> str:
    """The page as HTML that needs nothing else."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (files("fedmcc") / "reproduction" / "table.html").read_text()
    return environment.from_string(template).render(page=page)


def _grid(results: Results, columns: Sequence[Column], cells: Sequence[Cell]) -> Grid:
    table, lines = results.table, []
    headings = [heading(column, cells) for column in columns]
    for row in table.rows.values():
        entries = [results.entries[row.key, column.key] for column in columns]
        texts = [entry.text(score) for entry in entries for score in table.scores]
        lines.append((row_name(row, cells), row.ours, texts))
    return Grid("", headings, list(table.scores.values()), lines)


def _quoted(results: Results, columns: Sequence[Column]) -> Grid:
    """Columns that this scale does not run, as the paper has them."""
    table, lines = results.table, []
    for row in table.rows.values():
        entries = [results.entries[row.key, column.key] for column in columns]
        if any(entry.paper for entry in entries):
            texts = [entry.quoted(score) for entry in entries for score in table.scores]
            lines.append((row.name, row.ours, texts))
    names = [column.name for column in columns]
    return Grid("Not run at this scale: the paper's figures", names, list(table.scores.values()), lines)


def _line(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
