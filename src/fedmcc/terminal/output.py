"""Messages and tables in the terminal."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

out = Console()
err = Console(stderr=True)

MAX_TABLE_ROWS = 20  # clients or classes in the table that is printed at the start of a run

Counts = Sequence[Sequence[int]]  # one row per client, one column per class


def show_scores(scores: Mapping[str, Any], method: str) -> None:
    """Print the final scores; those that need labels or images are left out if there are none."""
    if not scores["images"]:
        say("There were no images to score: `fedmcc predict RUN IMAGES` gives the clusters of any images.")
        return
    if any(scores["scores"].values()):
        out.print(_cluster_scores(scores, method))
    if scores["knn"] is not None:
        queries = scores.get("sampled", {}).get("knn")
        sample = f", a sample of {queries:,} images" if queries else ""
        out.print(f"kNN on features (leave one out{sample}): {scores['knn']:.3f}", highlight=False)
    free = [f"{key} {value:.3f}" for key, value in scores["label_free"].items() if value is not None]
    out.print("without labels: " + ", ".join(free), highlight=False)
    out.print("cluster sizes: " + " ".join(map(str, scores["sizes"])), highlight=False)
    if scores["warning"]:
        warn(scores["warning"])


def _cluster_scores(scores: Mapping[str, Any], method: str) -> Table:
    names = {
        "pixels": "k-means on pixels",
        "head": f"{method}'s cluster head" + (", owner unknown" if scores["scores"].get("own") else ""),
        "own": f"{method}'s cluster head, at its client",
        "further": f"{method}'s cluster head, images of no client",
        "features": f"k-means on {method}'s features",
    }
    table = Table("", "ACC", "NMI", "ARI", title=f"{scores['images']:,} images, split {scores['split']}")
    for key, name in names.items():
        if values := scores["scores"].get(key):
            table.add_row(name, *(f"{values[score]:.3f}" for score in ("acc", "nmi", "ari")))
    return table


def show_evaluation(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print the scores of each protocol, with the standard deviation if there are several seeds."""
    table = Table("protocol", "scored on", "score", Column("mean", justify="right"))
    for protocol, scores in results.items():
        for index, (name, score) in enumerate(scores.items()):
            several = len(score["values"]) > 1
            mean = f"{score['mean']:.3f}" + (f" ± {score['std']:.3f}" if several else "")
            first = (protocol, f"{score['split']}, {score['images']:,} images")
            table.add_row(*(("", "") if index else first), name, mean, end_section=index == len(scores) - 1)
    out.print(table)


def show_registry(title: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """Print the entries of a registry: name, description, and options with their defaults."""
    table = Table("name", "description", "options", title=title)
    for entry in entries:
        table.add_row(*map(escape, entry))
    out.print(table)


def show_holdings(clients: Sequence[str], classes: Sequence[str], counts: Counts) -> None:
    """Print how many images of each class every client has, in a form that fits the terminal."""
    out.print(_holdings(clients, classes, counts, out.width))


def show_holdings_briefly(clients: Sequence[str], classes: Sequence[str], counts: Counts) -> None:
    """Print how many images the clients of a run have: nothing for one client, one line for many."""
    sizes = [sum(row) for row in counts]
    if is_quiet():
        return
    if 1 < len(clients) <= MAX_TABLE_ROWS and len(classes) <= MAX_TABLE_ROWS:
        err.print(_holdings(clients, classes, counts, err.width))
    elif len(clients) > 1:
        say(f"{len(clients):,} clients have {min(sizes):,} to {max(sizes):,} images each.")


def warn(sentence: str) -> None:
    """Print a warning."""
    err.print(f"[yellow]Warning:[/yellow] {escape(sentence)}", highlight=False, soft_wrap=True)


def fail(sentence: str) -> None:
    """Print an error."""
    err.print(f"[red]Error:[/red] {escape(sentence)}", highlight=False, soft_wrap=True)


def say(sentence: str) -> None:
    """Print a message, unless the command is quiet."""
    if not is_quiet():
        err.print(escape(sentence), highlight=False, soft_wrap=True)


def is_quiet() -> bool:
    """Whether only results, warnings and errors are printed."""
    return logging.getLogger("fedmcc").level > logging.INFO


def _holdings(clients: Sequence[str], classes: Sequence[str], counts: Counts, width: int) -> Table:
    """A table of clients by classes, or of classes by clients, or a summary: the first that fits."""
    by_client = _counted("client", clients, classes, counts)
    by_class = _counted("class", classes, clients, [*zip(*counts, strict=True)])
    fitting = (cells for cells in (by_client, by_class) if _width(cells) <= width)
    cells = next(fitting, _summary(clients, counts))
    table = Table(title=f"{len(clients):,} clients, {sum(map(sum, counts)):,} images")
    for index, name in enumerate(cells[0]):
        table.add_column(escape(name), justify="right" if index else "left")
    for row in cells[1:]:
        table.add_row(*map(escape, row), end_section=row is cells[-2])
    return table


def _counted(heading: str, rows: Sequence[str], columns: Sequence[str], counts: Counts) -> list[list[str]]:
    sums = [sum(column) for column in zip(*counts, strict=True)]
    named = zip([*rows, "all"], [*counts, sums], strict=True)
    cells = [[name, *(f"{count or '·'}" for count in row), str(sum(row))] for name, row in named]
    return [[heading, *columns, "all"], *cells]


def _summary(clients: Sequence[str], counts: Counts) -> list[list[str]]:
    sums = [sum(column) for column in zip(*counts, strict=True)]
    named = zip([*clients, "all"], [*counts, sums], strict=True)
    rows = [[name, *map(str, (sum(row), sum(map(bool, row)), max(row)))] for name, row in named]
    return [["client", "images", "classes", "largest class"], *rows]


def _width(cells: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True)) + 1
