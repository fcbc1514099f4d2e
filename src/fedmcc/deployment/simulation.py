"""A run on Flower's simulation, which Ray spreads over a cluster: `fedmcc run --engine flower-simulation`.

On one machine the engines `embedded` and `pool` are faster; the bits are the same.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen

import tomli_w

from fedmcc.config import Config, dump
from fedmcc.data.partition import resolve
from fedmcc.deployment.flower import processes, programs
from fedmcc.errors import InputError
from fedmcc.runs.directory import Row, Run
from fedmcc.runs.resolve import check

GLANCE = 0.5  # seconds between two looks at the run directory
UNBOUND = 30 * 86400.0  # seconds: nobody is late on this machine, only slow
ASK = 10.0  # seconds between two questions to Flower, each of which starts a program


def simulate(config: Config, path: Path) -> Iterator[Row]:
    """Run to the end from wherever the run directory stands; yields each new row of metrics."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise InputError("Flower's simulation is not installed: pip install 'fedmcc[simulation]'.")
    from fedmcc.deployment.server.bundle import write_bundle

    config = _here(config)
    check(config)
    clients, home = config.partition.clients, Path(tempfile.mkdtemp(prefix="fedmcc-flower-"))
    write_bundle(home / "bundle")
    told = {"recipe": dump(config), "run": str(path.resolve()), "min-sites": clients}
    told |= {"wait": UNBOUND, "round-timeout": UNBOUND}
    (home / "run.toml").write_text(tomli_w.dumps(told))
    nodes = ("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1")
    try:
        with programs.local_superlink(home, "--simulation"):
            line = programs.CommandLine(home)
            number = line.run(home / "bundle", home / "run.toml", *nodes)
            with processes.running(line.log_command(number), home, home / "run.log") as words:
                yield from _watch(Run(path), line, number, words)
    finally:
        processes.terminate_all(home)
    shutil.rmtree(home)


def _here(config: Config) -> Config:
    """All images are on this machine: it can score on them, and count clients where groups are clients."""
    partition = config.partition
    if partition.name == "by_group":
        partition = resolve(partition, config.data.load())
    return replace(config, partition=partition, evaluation=replace(config.evaluation, at_server=True))


def _watch(run: Run, line: programs.CommandLine, number: str, words: Popen[bytes]) -> Iterator[Row]:
    """The rows as they come; Flower is asked how the run does once it says nothing more."""
    seen, asked = len(run.committed_rows()), 0.0
    while True:
        over = run.finished
        rows = run.rows()
        yield from rows[seen:]
        seen = max(seen, len(rows))
        if over:
            return
        if words.poll() is not None and time.monotonic() - asked > ASK:
            asked = time.monotonic()
            if (now := line.status(number)).startswith("finished") and not run.finished:
                raise programs.FlowerError(
                    f"the simulation ended early ({now}): {line.home}/run.log says why"
                )
        time.sleep(GLANCE)
