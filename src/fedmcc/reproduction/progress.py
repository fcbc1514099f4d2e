"""Shows the progress of a table: running cells in a terminal, one line per finished cell in a log."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.run_cell import Ended, Progressed
from fedmcc.terminal.output import err, say
from fedmcc.terminal.progress import format_duration

MIN_WORK = 0.05  # cells of work after which the remaining time is estimated


class TableProgress:
    """Counts running, done, failed and waiting cells, and estimates the remaining time."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.total = len(cells)
        self.done = sum(cell.done for cell in cells)
        self.failed = 0
        self.running: dict[str, float] = {}  # by cell: fraction that is done
        self.cell_started: dict[str, float] = {}
        self.started = time.monotonic()
        self.work = 0.0  # done since the start, in cells

    def update(self, cell: Cell, event: Progressed | Ended | None) -> None:
        """Count an event of a cell; None means that the cell starts."""
        name = cell.name
        if event is None:
            self.running[name], self.cell_started[name] = 0.0, time.monotonic()
            return
        share = event.share if isinstance(event, Progressed) else 1.0
        self.work += max(0.0, share - self.running.get(name, 0.0))
        self.running[name] = share
        if isinstance(event, Ended):
            self._end(name, event.reason)

    def _end(self, name: str, reason: str) -> None:
        del self.running[name]
        duration = format_duration(time.monotonic() - self.cell_started.pop(name))
        self.done += not reason
        self.failed += bool(reason)
        if not err.is_terminal:
            say(f"{name}: {reason or 'done'} ({duration}); {self.summary}")

    @property
    def summary(self) -> str:
        """Numbers of cells, and the remaining time."""
        waiting = self.total - self.done - self.failed - len(self.running)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} cells done{failed}, {waiting} waiting{self._time_left()}"

    def _time_left(self) -> str:
        left = self.total - self.done - self.failed - sum(self.running.values())
        if self.work < MIN_WORK or left <= 0:
            return ""
        return f", about {format_duration(left * (time.monotonic() - self.started) / self.work)} left"

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, share in self.running.items():
            elapsed = format_duration(time.monotonic() - self.cell_started[name])
            table.add_row(name, ProgressBar(1.0, share, width=24), f"{share:.0%}", elapsed)
        return Group(table, Text(self.summary))


@contextmanager
def display(progress: TableProgress) -> Iterator[None]:
    """Show the progress in the terminal, if there is one, while the body runs."""
    if not err.is_terminal:
        yield
        return
    with Live(progress, console=err, refresh_per_second=2):
        yield
