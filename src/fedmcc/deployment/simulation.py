"""Runs on Flower's simulation, which Ray distributes over a cluster: `fedmcc run --engine flower-simulation`.

On one machine the engines `embedded` and `pool` are faster; the results are bit-identical.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen

from fedmcc.config import Config, dump
from fedmcc.data.partition import resolve
from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.server.bundle import write_bundle
from fedmcc.deployment.server.request import JoinPolicy, RunRequest, write_request
from fedmcc.errors import InputError
from fedmcc.runs.directory import Row, Run
from fedmcc.runs.resolve import check, with_statistics

POLL_SECONDS = 0.5  # between two reads of the metrics
STATUS_SECONDS = 10.0  # between two requests for the status, each of which starts a program
NO_TIMEOUT = 30 * 86400.0  # seconds: simulated sites are only slow, never lost


def simulate(config: Config, path: Path) -> Iterator[Row]:
    """Run all rounds that the run directory does not have yet; yields each new row of metrics."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise InputError("Flower's simulation is not installed: pip install 'fedmcc[simulation]'.")
    config = _with_local_images(config)
    check(config)
    clients, home = config.partition.clients, Path(tempfile.mkdtemp(prefix="fedmcc-flower-"))
    policy = JoinPolicy(min_sites=clients, wait=NO_TIMEOUT, round_timeout=NO_TIMEOUT)
    run_config = write_request(home, RunRequest(dump(config), path.resolve(), policy))
    write_bundle(home / "bundle", {**run_config, "sites": str(path.resolve() / "sites")})
    nodes = ("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1")
    try:
        with programs.local_superlink(home, "--simulation"):
            flower = programs.CommandLine(home)
            run_id = flower.run(home / "bundle", *nodes)
            with processes.running(flower.log_command(run_id), home, home / "run.log") as process:
                yield from _follow(Run(path), flower, run_id, process)
    finally:
        processes.terminate_all(home)
    shutil.rmtree(home)


def _with_local_images(config: Config) -> Config:
    """The configuration for images on this machine: clients may be groups, and the server scores."""
    images, evaluation = config.data.load(), replace(config.evaluation, at_server=True)
    partition = resolve(config.partition, images)
    return with_statistics(replace(config, partition=partition, evaluation=evaluation), images)


def _follow(run: Run, flower: programs.CommandLine, run_id: str, process: Popen[bytes]) -> Iterator[Row]:
    """Yield new rows until the run is finished; raises FlowerError if it ended before that."""
    seen, asked = len(run.committed_rows()), 0.0
    while True:
        finished = run.finished
        rows = run.rows()
        yield from rows[seen:]
        seen = max(seen, len(rows))
        if finished:
            return
        if process.poll() is not None and time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            if (status := flower.status(run_id)).startswith("finished") and not run.finished:
                raise programs.FlowerError(
                    f"The simulation ended early ({status}): see {flower.home}/run.log"
                )
        time.sleep(POLL_SECONDS)
