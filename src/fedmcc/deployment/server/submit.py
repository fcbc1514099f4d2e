"""Chooses the run of a server, submits it to Flower, and follows its rounds on disk."""

import json
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from fedmcc import config
from fedmcc.config import Config
from fedmcc.deployment.flower import processes
from fedmcc.deployment.flower.logs import last_error, rotate_log
from fedmcc.deployment.flower.programs import FlowerError
from fedmcc.deployment.server.bundle import write_bundle
from fedmcc.deployment.server.launch import RunningServer
from fedmcc.deployment.server.request import RunRequest, write_request
from fedmcc.deployment.setup.create import expiry_warning
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run, load_run, next_free, require_unused
from fedmcc.runs.experiment import Finished, Plan, Scored
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step

POLL_SECONDS = 0.5  # between two reads of the metrics
RESOLVED_KEYS = ("partition.", "engine.", "data.root")  # a started run may have other values than its recipe


def choose_run(operator: OperatorFolder, recipe: Path, chosen: Path | None) -> Run:
    """The chosen run, else the last run of this recipe if it is unfinished, else a new one."""
    if chosen is not None:
        return Run(chosen.resolve())
    started = sorted(operator.runs.glob(f"{recipe.stem}-[0-9][0-9][0-9]"))
    if started and not Run(started[-1]).finished:
        return Run(started[-1])
    return Run(next_free(operator.runs, recipe.stem))


def choose_config(run: Run, recipe: Config) -> Config:
    """The recipe for a new run; for a started one its own configuration, which the recipe must match."""
    if not run.config_file.exists():
        return recipe
    own = config.load(load_run(run.path).config_file)
    started = _flat(own)
    for key, value in _flat(recipe).items():
        if value not in (started.get(key), "auto") and not key.startswith(RESOLVED_KEYS):
            raise InputError(
                f"{run.path} was started with another value of {key}: "
                "restore the recipe, or start another run with --run."
            )
    return own


def check_request(request: RunRequest, spec: FederationSpec) -> None:
    """Raise InputError for options with which no run could start."""
    policy = request.policy
    if not 1 <= policy.min_sites <= len(spec.sites):
        raise InputError(f"--min-sites is {policy.min_sites}: give a number from 1 to {len(spec.sites)}.")
    for option, seconds in (("--wait", policy.wait), ("--round-timeout", policy.round_timeout)):
        if not 0 < seconds < math.inf:
            raise InputError(f"{option} is {seconds:g}: give seconds above 0.")
    _check_folder(Run(request.run))


def submit(server: RunningServer, request: RunRequest) -> str:
    """Start or resume a run with the sites of the server; returns Flower's id of the run."""
    folder, nodes = server.operator.server, tuple(server.nodes.items())
    request.run.parent.mkdir(parents=True, exist_ok=True)
    policy = request.policy._replace(names=tuple(server.nodes), nodes=nodes)
    request = request._replace(policy=policy, federation=server.operator.path)
    write_bundle(folder / "bundle", write_request(server.operator.flower_home, request))
    run_id = server.flower.run(folder / "bundle")
    current = {"run": str(request.run), "number": run_id}
    write_atomically(folder / "current.json", json.dumps(current))
    return run_id


def plan(run: Run, rounds: Mapping[str, int]) -> Plan:
    """The number of rounds in total, and of those that the run directory has."""
    return Plan(sum(rounds.values()), len(run.committed_rows()), "rounds")


def follow(
    server: RunningServer,
    run: Run,
    run_id: str,
    rounds: Mapping[str, int],
    check: Callable[[], None] = lambda: None,
) -> Iterator[Step | Scored | Finished]:
    """Yield the rounds of a run as they appear on disk, until it ends; raises InputError if it fails.

    `check` is called at every poll.
    """
    shown = {(row["stage"], row["round"]) for row in run.committed_rows()}
    log = server.operator.logs / "run.log"
    rotate_log(log, 0)
    while True:
        argv = server.flower.log_command(run_id)
        with processes.running(argv, server.operator.flower_home, log) as process:
            while True:
                ended = process.poll() is not None
                yield from _new_rounds(run, rounds, shown)
                if run.finished:
                    with suppress(TimeoutExpired):  # let it write the last lines to the log
                        process.wait(processes.TERMINATION_SECONDS)
                    yield Finished(run.read_json(run.scores_file.name))
                    return
                check()
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        if _status(server, run_id).startswith("finished") and not run.finished:
            raise InputError(f"The run failed: {last_error(log)}")


def _check_folder(run: Run) -> None:
    """Raise InputError if the run can be neither created in its folder nor resumed from it."""
    existing = next(path for path in (run.path, *run.path.parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{existing} is a file: choose another folder with --run.")
    if run.config_file.exists():
        return
    try:
        require_unused(run.path)
    except InputError:  # its sentence names --out
        raise InputError(
            f"{run.path} is not empty and is not a run directory: choose another folder with --run."
        ) from None


def _status(server: RunningServer, run_id: str) -> str:
    """The status of a run; raises InputError if Flower cannot be asked because a certificate has expired."""
    try:
        return server.flower.status(run_id)
    except FlowerError:
        expiry_warning(server.operator)
        raise


def _new_rounds(run: Run, rounds: Mapping[str, int], shown: set[tuple[str, int]]) -> Iterator[Step | Scored]:
    """Yield the rounds that are not in `shown`, and add them to it."""
    for row in run.rows():
        if (place := (row["stage"], row["round"])) not in shown:
            shown.add(place)
            yield Step(-1, row["loss"] or 0.0, 1)
            yield Scored(row, rounds[row["stage"]])


def _flat(whole: Config) -> dict[str, Any]:
    """The options of a configuration by dotted keys, without those that are not set."""
    flat: dict[str, Any] = {}
    for key, value in tomllib.loads(config.dump(whole)).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": option for name, option in value.items()}
        else:
            flat[key] = value
    return flat
