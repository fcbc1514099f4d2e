"""What a person reads in the terminal: sentences and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

out = Console()
err = Console(stderr=True)

MOST = 20  # clients or classes in the table that a run begins with

Counts = Sequence[Sequence[int]]  # a row per client, a column per class


def show_scores(scores: Mapping[str, Any], method: str) -> None:
    """The final scores side by side, or what can be said without labels, or without images."""
    if not scores["images"]:
        say("There were no images to score: `fedmcc predict RUN IMAGES` gives the clusters of a site's own.")
        return
    names = {
        "pixels": "k-means on pixels",
        "head": f"{method}'s cluster head",
        "features": f"k-means on {method}'s features",
    }
    if any(scores["scores"].values()):
        table = Table("", "ACC", "NMI", "ARI", title=f"{scores['images']:,} images, split {scores['split']}")
        for key, name in names.items():
            if found := scores["scores"].get(key):
                table.add_row(name, *(f"{found[score]:.3f}" for score in ("acc", "nmi", "ari")))
        out.print(table)
    if scores["knn"] is not None:
        out.print(f"kNN on features (leave one out): {scores['knn']:.3f}", highlight=False)
    free = [f"{key} {value:.3f}" for key, value in scores["label_free"].items() if value is not None]
    out.print("without labels: " + ", ".join(free), highlight=False)
    out.print("cluster sizes: " + " ".join(map(str, scores["sizes"])), highlight=False)
    if scores["warning"]:
        warn(scores["warning"])


def show_evaluation(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """The scores of each protocol, as mean and deviation where there were several seeds."""
    table = Table("protocol", "scored on", "score", Column("mean", justify="right"))
    for protocol, scores in found.items():
        for place, (name, score) in enumerate(scores.items()):
            several = len(score["values"]) > 1
            mean = f"{score['mean']:.3f}" + (f" ± {score['std']:.3f}" if several else "")
            where = (protocol, f"{score['split']}, {score['images']:,} images")
            table.add_row(*(("", "") if place else where), name, mean, end_section=place == len(scores) - 1)
    out.print(table)


def show_registry(title: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """What is registered under each name: what it is, and its options with their defaults."""
    table = Table("name", "what it is", "options", title=title)
    for entry in entries:
        table.add_row(*map(escape, entry))
    out.print(table)


def show_holdings(clients: Sequence[str], classes: Sequence[str], counts: Counts) -> None:
    """Who holds how many images of each class, in whichever shape fits the terminal."""
    out.print(_holdings(clients, classes, counts, out.width))


def show_holdings_briefly(clients: Sequence[str], classes: Sequence[str], counts: Counts) -> None:
    """The same before a run of several clients, in a sentence if they or the classes are many."""
    sizes = [sum(row) for row in counts]
    if 1 < len(clients) <= MOST and len(classes) <= MOST:
        err.print(_holdings(clients, classes, counts, err.width))
    elif len(clients) > 1:
        say(f"{len(clients):,} clients hold {min(sizes):,} to {max(sizes):,} images each.")


def warn(sentence: str) -> None:
    """Something a person should know."""
    err.print(f"[yellow]Warning:[/yellow] {escape(sentence)}", highlight=False, soft_wrap=True)


def fail(sentence: str) -> None:
    """Why the command did not do what it was asked."""
    err.print(f"[red]Error:[/red] {escape(sentence)}", highlight=False, soft_wrap=True)


def say(sentence: str) -> None:
    """Where things are and what to do next."""
    err.print(escape(sentence), highlight=False, soft_wrap=True)


def _holdings(clients: Sequence[str], classes: Sequence[str], counts: Counts, width: int) -> Table:
    """Clients down and classes across; or turned; or a summary of each client."""
    upright = _counted("client", clients, classes, counts)
    turned = _counted("class", classes, clients, [*zip(*counts, strict=True)])
    cells = next((c for c in (upright, turned) if _width(c) <= width), _summary(clients, counts))
    table = Table(title=f"{len(clients):,} clients, {sum(map(sum, counts)):,} images")
    for place, name in enumerate(cells[0]):
        table.add_column(escape(name), justify="right" if place else "left")
    for row in cells[1:]:
        table.add_row(*map(escape, row), end_section=row is cells[-2])
    return table


def _counted(what: str, down: Sequence[str], across: Sequence[str], counts: Counts) -> list[list[str]]:
    sums = [sum(column) for column in zip(*counts, strict=True)]
    named = zip([*down, "all"], [*counts, sums], strict=True)
    rows = [[name, *(f"{count or '·'}" for count in row), str(sum(row))] for name, row in named]
    return [[what, *across, "all"], *rows]


def _summary(clients: Sequence[str], counts: Counts) -> list[list[str]]:
    sums = [sum(column) for column in zip(*counts, strict=True)]
    named = zip([*clients, "all"], [*counts, sums], strict=True)
    rows = [[name, *map(str, (sum(row), sum(map(bool, row)), max(row)))] for name, row in named]
    return [["client", "images", "classes", "largest class"], *rows]


def _width(cells: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True)) + 1
