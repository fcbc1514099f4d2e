"""Runs cells in worker processes, several at a time; if a process dies, only its cell fails."""

import os
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.federation.engines.subprocesses import exit_with_parent, start_process
from fedmcc.reproduction.cells import Cell
from fedmcc.reproduction.run_cell import Ended, Progressed, run_cell
from fedmcc.storage.atomic_files import write_atomically


class CellEvent(NamedTuple):
    """An event of a cell; None: the cell starts."""

    cell: Cell
    event: Progressed | Ended | None


class CellWorker:
    """A process that runs one cell after the other, seen from its parent."""

    def __init__(self, threads: int) -> None:
        # Not a daemon process: the engine of a cell may start processes of its own.
        self.process, self.pipe = start_process(_work, (threads,), (__name__,), daemon=False)
        self.cell: Cell | None = None

    def start_cell(self, cell: Cell) -> None:
        """Send a cell to the process."""
        self.cell = cell
        self.pipe.send(cell)

    def receive(self) -> CellEvent:
        """Wait for the next event of the cell; if the process has died, the cell has ended."""
        assert self.cell is not None
        try:
            return CellEvent(self.cell, self.pipe.recv())
        except (EOFError, OSError):
            self.process.join()
            reason = f"Its process ended with code {self.process.exitcode}: run the command again."
            return CellEvent(self.cell, Ended(reason))

    def stop(self) -> None:
        """Kill the process: the run of its cell can be resumed."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_cells(cells: Sequence[Cell], jobs: int) -> Iterator[CellEvent]:
    """Run the cells in this number of processes; yield when each starts, progresses and ends."""
    waiting, busy, idle = deque(cells), list[CellWorker](), list[CellWorker]()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    try:
        while waiting or busy:
            while len(busy) < jobs and (cell := _next_cell(waiting, busy)):
                worker = idle.pop() if idle else CellWorker(threads)
                busy.append(worker)
                worker.start_cell(cell)
                yield CellEvent(cell, None)
            for worker in _ready(busy):
                cell_event = worker.receive()
                if isinstance(cell_event.event, Ended):
                    busy.remove(worker)
                    _release(worker, idle)
                yield cell_event
    finally:
        for worker in (*busy, *idle):
            worker.stop()


def _next_cell(waiting: deque[Cell], busy: Sequence[CellWorker]) -> Cell | None:
    """Remove and return the first cell that waits for no other cell's encoder; None: there is none."""
    unfinished = {cell.path for cell in waiting} | {worker.cell.path for worker in busy if worker.cell}
    cell = next((cell for cell in waiting if cell.encoder_of not in unfinished), None)
    if cell is not None:
        waiting.remove(cell)
    return cell


def _ready(busy: list[CellWorker]) -> list[CellWorker]:
    """Wait until workers have sent something, and return them."""
    pipes = wait([worker.pipe for worker in busy])
    return [worker for worker in busy if worker.pipe in pipes]


def _release(worker: CellWorker, idle: list[CellWorker]) -> None:
    if worker.process.is_alive():
        idle.append(worker)
    else:
        worker.stop()


def _work(pipe: Connection, threads: int) -> None:
    """The worker process: receives cells and sends their events until the parent closes the pipe."""
    exit_with_parent()
    try:
        while True:
            cell: Cell = pipe.recv()
            for event in _events(cell, threads):
                pipe.send(event)
    except (EOFError, OSError):
        return


def _events(cell: Cell, threads: int) -> Iterator[Progressed | Ended]:
    """Run a cell until it succeeds or fails; an unexpected error is written to a file beside its folder."""
    try:
        yield from run_cell(cell, threads)
    except (InputError, ArithmeticError) as error:
        yield Ended(str(error))
    except Exception as error:
        path = cell.path.parent / f"{cell.name}.txt"
        write_atomically(path, traceback.format_exc())
        yield Ended(
            f"{type(error).__name__}: {error}; the traceback is in {path.name} beside the cell's folder."
        )
    else:
        yield Ended()
