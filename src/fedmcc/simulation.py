"""A run on Flower's simulation, which Ray spreads over a cluster: `fedmcc run --engine flower-simulation`.

On one machine the engines `embedded` and `pool` are faster; the bits are the same.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedmcc.config import Config, dump
from fedmcc.errors import InputError
from fedmcc.flower_programs import need, status, submit, superlink
from fedmcc.partition import settled
from fedmcc.runs import Row, Run

GLANCE = 0.5  # seconds between two looks at the run directory
ASK = 10.0  # seconds between two questions to Flower, each of which starts a program


def simulate(config: Config, path: Path) -> Iterator[Row]:
    """Run to the end from wherever the run directory stands; yields each new row of metrics."""
    need("simulation", "flwr", "ray")
    from fedmcc.flower_app import write_bundle

    config = _here(config)
    clients, home = config.partition.clients, Path(tempfile.mkdtemp(prefix="fedmcc-flower-"))
    write_bundle(home / "bundle")
    told = {"recipe": dump(config), "run": str(path.resolve()), "min-sites": clients}
    nodes = ("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1")
    with superlink(home, "--simulation"):
        yield from _watch(Run(path), home, submit(home, home / "bundle", told, *nodes))
    shutil.rmtree(home)


def _here(config: Config) -> Config:
    """All images are on this machine: it can score on them, and count clients where groups are clients."""
    partition = config.partition
    if partition.name == "by_group":
        partition = settled(partition, config.data.load())
    return replace(config, partition=partition, evaluation=replace(config.evaluation, at_server=True))


def _watch(run: Run, home: Path, number: str) -> Iterator[Row]:
    seen, asked = len(run.rows()), time.monotonic()
    while True:
        over = run.finished
        rows = run.rows()
        yield from rows[seen:]
        seen = max(seen, len(rows))
        if over:
            return
        if time.monotonic() - asked > ASK:
            asked = time.monotonic()
            if "fail" in (now := status(home, number)) or "stopped" in now:
                raise InputError(f"The simulation ended early ({now}): {home}/flower-superlink.log says why.")
        time.sleep(GLANCE)
