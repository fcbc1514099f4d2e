"""Progress bars for slow steps before training, such as downloads; shown only on a terminal."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_bar(bytes_counted: bool = False) -> Iterator["Progress"]:
    """Show a progress bar on standard error; it is removed at the end."""
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
    hidden = not console.is_terminal or logging.getLogger("fedmcc").level > logging.INFO  # with --quiet
    count = DownloadColumn() if bytes_counted else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield progress


@contextmanager
def progress_counter(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; the yielded function advances it by a number of items."""
    with progress_bar() as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)
