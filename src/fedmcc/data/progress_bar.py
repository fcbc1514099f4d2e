"""Bars for what takes long before training starts; drawn on a terminal only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_bar(bytes_counted: bool = False) -> Iterator["Progress"]:
    """A bar on standard error that leaves no trace when it is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    count = DownloadColumn() if bytes_counted else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


@contextmanager
def progress_counter(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar as a function that is told how many more are done."""
    with progress_bar() as progress:
        task = progress.add_task(description, total=total)
        yield lambda more: progress.advance(task, more)
