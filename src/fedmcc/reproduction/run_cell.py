"""Runs one cell: starts or resumes its run, then evaluates it with the table's protocol."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fedmcc import config
from fedmcc.errors import InputError
from fedmcc.federation.rounds import Progress
from fedmcc.numerics.state_dicts import copy_into, detached, select
from fedmcc.reproduction import tsne
from fedmcc.reproduction.cells import TIME_FILE, Cell
from fedmcc.reproduction.reuse import copy_equal_run
from fedmcc.runs import build, directory, experiment, protocols
from fedmcc.runs.checkpoints import load_state, save_progress
from fedmcc.runs.directory import Run
from fedmcc.runs.experiment import Scored
from fedmcc.training.loop import Step

PROGRESS_SECONDS = 0.5  # between two progress events of a cell


class Progressed(NamedTuple):
    """The fraction of a cell's training that is done, from 0 to 1."""

    share: float


class Ended(NamedTuple):
    """A cell has ended; an empty reason means success."""

    reason: str = ""


def run_cell(cell: Cell, threads: int) -> Iterator[Progressed]:
    """Run what is left of a cell, with this number of threads unless its configuration sets another."""
    started, new = time.process_time(), not cell.path.exists()
    if new:
        new = not copy_equal_run(cell)
    if not cell.run.finished:
        yield from _train(cell, threads)
    if not cell.evaluated:
        yield Progressed(1.0)
        _evaluate(cell)
    if new:  # the time of a resumed run is not known
        cell.run.write_json(TIME_FILE, {"processor_seconds": time.process_time() - started})


def _train(cell: Cell, threads: int) -> Iterator[Progressed]:
    new = not cell.run.config_file.exists()
    general = replace(cell.config.general, threads=cell.config.general.threads or threads)
    prepared = build.prepare(
        replace(cell.config, general=general) if new else config.load(cell.run.config_file)
    )
    _load_encoder(cell, prepared)
    run = experiment.start_run(prepared, cell.path) if new else directory.load_run(cell.path)
    if new and cell.encoder_of is not None:  # `fedmcc resume` must find the encoder, too
        save_progress(run, Progress(detached(prepared.net.state_dict())), 0, ())
    total, processed, _ = experiment.plan(prepared, run)
    last_event = time.monotonic()
    _keep_network(cell)  # an earlier process may have been killed between the round and this call
    for event in experiment.steps(prepared, run):
        if isinstance(event, Scored):
            _keep_network(cell)
        processed += event.samples if isinstance(event, Step) else 0
        if time.monotonic() - last_event > PROGRESS_SECONDS:
            last_event = time.monotonic()
            yield Progressed(min(1.0, processed / max(1, total)))


def _load_encoder(cell: Cell, prepared: build.Experiment) -> None:
    """Give the network the encoder that another cell has trained, if this cell clusters its features."""
    if cell.encoder_of is None:
        return
    source = Run(cell.encoder_of)
    if not source.finished:
        raise InputError(
            f"{cell.name} needs the encoder of {source.path.name}, which is not finished: run that row again."
        )
    encoder = select(load_state(source.model_file), ("online.encoder",))
    if encoder.keys() != select(prepared.net.state_dict(), ("online.encoder",)).keys():
        raise InputError(f"{source.path.name} has another encoder than {cell.name}: give both rows the same.")
    copy_into(prepared.net, encoder)


def _keep_network(cell: Cell) -> None:
    """Keep the network of the last finished round if the protocol needs it."""
    if cell.protocol == "tsne":
        tsne.keep_network(cell)


def _evaluate(cell: Cell) -> None:
    if cell.protocol == "tsne":
        scores = tsne.write_points(cell)
        protocols.record(cell.run, {"tsne": {name: {"mean": value} for name, value in scores.items()}})
    else:
        protocols.record(cell.run, protocols.evaluate(cell.run, [cell.protocol]))
