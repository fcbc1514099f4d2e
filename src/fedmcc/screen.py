"""What a person reads in the terminal: sentences and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console()
err = Console(stderr=True)


def show_scores(scores: Mapping[str, Any], method: str) -> None:
    """The final scores side by side, or what can be said without labels."""
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


def show_registry(title: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """What is registered under each name: what it is, and its options with their defaults."""
    table = Table("name", "what it is", "options", title=title)
    for entry in entries:
        table.add_row(*map(escape, entry))
    out.print(table)


def warn(sentence: str) -> None:
    """Something a person should know."""
    err.print(f"[yellow]Warning:[/yellow] {escape(sentence)}", highlight=False, soft_wrap=True)


def fail(sentence: str) -> None:
    """Why the command did not do what it was asked."""
    err.print(f"[red]Error:[/red] {escape(sentence)}", highlight=False, soft_wrap=True)


def say(sentence: str) -> None:
    """Where things are and what to do next."""
    err.print(escape(sentence), highlight=False, soft_wrap=True)
