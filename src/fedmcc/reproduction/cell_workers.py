"""Cells in processes of their own, several at a time; a process that dies costs its cell alone."""

import os
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.federation.engines.subprocesses import exit_with_parent, start_process
from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.run_cell import Ended, Moved, run_cell
from fedmcc.storage.atomic_files import write_atomically


class Word(NamedTuple):
    """What there is to say about a cell: None when it begins."""

    cell: Cell
    news: Moved | Ended | None


class Job:
    """A process that does one cell after the other, as its parent sees it."""

    def __init__(self, threads: int) -> None:
        # No daemon: the engine of a cell may have processes of its own.
        self.process, self.pipe = start_process(_serve, (threads,), (__name__,), daemon=False)
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> None:
        """Let it do a cell."""
        self.cell = cell
        self.pipe.send(cell)

    def hear(self) -> Moved | Ended:
        """What it says next; that its process is gone ends the cell."""
        try:
            said: Moved | Ended = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ended(f"Its process ended with code {self.process.exitcode}: run the command again.")
        return said

    def end(self) -> None:
        """Stop it, whatever it does: a run can be resumed."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_cells(waiting: Sequence[Cell], count: int) -> Iterator[Word]:
    """Do the cells, so many at a time, and say of each when it begins, how far it is and how it ended."""
    left, busy, idle = deque(waiting), list[Job](), list[Job]()
    threads = max(1, (os.cpu_count() or 1) // count)
    try:
        while left or busy:
            while left and len(busy) < count:
                job = idle.pop() if idle else Job(threads)
                busy.append(job)
                job.give(left.popleft())
                yield Word(_cell(job), None)
            for job in _speaking(busy):
                word = Word(_cell(job), job.hear())
                if isinstance(word.news, Ended):
                    busy.remove(job)
                    _released(job, idle)
                yield word
    finally:
        for job in (*busy, *idle):
            job.end()


def _speaking(busy: list[Job]) -> list[Job]:
    pipes = wait([job.pipe for job in busy])
    return [job for job in busy if job.pipe in pipes]


def _released(job: Job, idle: list[Job]) -> None:
    if job.process.is_alive():
        idle.append(job)
    else:
        job.end()


def _cell(job: Job) -> Cell:
    assert job.cell is not None
    return job.cell


def _serve(pipe: Connection, threads: int) -> None:
    """The process: cells in, words out, until nobody listens any more."""
    exit_with_parent()
    try:
        while True:
            cell: Cell = pipe.recv()
            for moved in _watched(cell, threads):
                pipe.send(moved)
    except (EOFError, OSError):
        return


def _watched(cell: Cell, threads: int) -> Iterator[Moved | Ended]:
    """A cell until it ends, well or with a sentence: the others go on."""
    try:
        yield from run_cell(cell, threads)
    except (InputError, ArithmeticError) as error:
        yield Ended(str(error))
    except Exception as error:
        path = cell.path.parent / f"{cell.name}.txt"
        write_atomically(path, traceback.format_exc())
        yield Ended(f"{type(error).__name__}: {error}; {path.name} beside its folder says where.")
    else:
        yield Ended()
