"""What a worker process does with a cell: begin or resume its run, then go through its protocol."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fedmcc import config
from fedmcc.reproduction import tsne
from fedmcc.reproduction.cells import Cell
from fedmcc.runs import build, directory, experiment, protocols
from fedmcc.runs.experiment import Scored
from fedmcc.training.loop import Step

PAUSE = 0.5  # seconds between two words on how far a cell is


class Moved(NamedTuple):
    """A cell is this far, from 0 to 1."""

    share: float


class Ended(NamedTuple):
    """A cell is complete, or why it is not."""

    reason: str = ""


def run_cell(cell: Cell, threads: int) -> Iterator[Moved]:
    """Do whatever is left of a cell."""
    if not cell.run.finished:
        yield from _trained(cell, threads)
    if not cell.measured:
        yield Moved(1.0)
        _measure(cell)


def _trained(cell: Cell, threads: int) -> Iterator[Moved]:
    if cell.run.config_file.exists():
        run = directory.load_run(cell.path)
        prepared = build.prepare(config.load(run.config_file))
    else:
        general = replace(cell.config.general, threads=cell.config.general.threads or threads)
        prepared = build.prepare(replace(cell.config, general=general))
        run = experiment.start_run(prepared, cell.path)
    total, seen, _ = experiment.plan(prepared, run)
    said = time.monotonic()
    _keep(cell)  # perhaps it was killed before it could
    for event in experiment.steps(prepared, run):
        if isinstance(event, Scored):
            _keep(cell)
        seen += event.samples if isinstance(event, Step) else 0
        if time.monotonic() - said > PAUSE:
            said = time.monotonic()
            yield Moved(min(1.0, seen / max(1, total)))


def _keep(cell: Cell) -> None:
    """What the protocol will want to see of the round that has just been committed."""
    if cell.protocol == "tsne":
        tsne.keep(cell)


def _measure(cell: Cell) -> None:
    """Go through the protocol and keep what it says."""
    if cell.protocol == "tsne":
        tsne.measure(cell)
    else:
        protocols.record(cell.run, protocols.evaluate(cell.run, [cell.protocol]))
