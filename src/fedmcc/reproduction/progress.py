"""How far a table is: the cells under way in a terminal, a line per cell in a log."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.run_cell import Ended, Moved
from fedmcc.terminal.output import err, say
from fedmcc.terminal.progress import format_duration


class Board:
    """Which cells are running, done, failed and left, and how long it will take."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.total = len(cells)
        self.done = sum(cell.done for cell in cells)
        self.failed = 0
        self.running: dict[str, float] = {}
        self.begun, self.started = {}, time.monotonic()  # type: dict[str, float], float
        self.gained = 0.0  # cells' worth of work since the start

    def hear(self, cell: Cell, news: Moved | Ended | None) -> None:
        """Something happened to a cell."""
        name = cell.name
        if news is None:
            self.running[name], self.begun[name] = 0.0, time.monotonic()
            return
        share = news.share if isinstance(news, Moved) else 1.0
        self.gained += max(0.0, share - self.running.get(name, 0.0))
        self.running[name] = share
        if isinstance(news, Ended):
            self._end(name, news.reason)

    def _end(self, name: str, reason: str) -> None:
        del self.running[name]
        took = format_duration(time.monotonic() - self.begun.pop(name))
        self.done += not reason
        self.failed += bool(reason)
        if not err.is_terminal:
            say(f"{name}: {reason or 'done'} ({took}); {self.summary}")

    @property
    def summary(self) -> str:
        """Counts, and the time left."""
        left = self.total - self.done - self.failed - len(self.running)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} cells done{failed}, {left} waiting{self._time_left()}"

    def _time_left(self) -> str:
        ahead = self.total - self.done - self.failed - sum(self.running.values())
        if self.gained < 0.05 or ahead <= 0:
            return ""
        return f", about {format_duration(ahead * (time.monotonic() - self.started) / self.gained)} left"

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, share in self.running.items():
            elapsed = format_duration(time.monotonic() - self.begun[name])
            table.add_row(name, ProgressBar(1.0, share, width=24), f"{share:.0%}", elapsed)
        return Group(table, Text(self.summary))


@contextmanager
def shown(board: Board) -> Iterator[None]:
    """The board on the screen while something happens."""
    if not err.is_terminal:
        yield
        return
    with Live(board, console=err, refresh_per_second=2):
        yield
