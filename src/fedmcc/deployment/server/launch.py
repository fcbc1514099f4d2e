"""The server of a federation: Flower's on this machine alone, a proxy before it, a run that is followed."""

import json
import math
import os
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, NamedTuple

import tomli_w

from fedmcc import config
from fedmcc.config import Config
from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.flower.connectivity import UnreachableError, check_connection, is_ready
from fedmcc.deployment.setup import nginx
from fedmcc.deployment.setup.create import write_nginx_config
from fedmcc.deployment.setup.layout import PRIVATE_MODE, FederationSpec, OperatorFolder, make_private_folders
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run, load_run, next_free
from fedmcc.runs.experiment import Finished, Plan, Scored
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step

READY = 120.0  # seconds in which the programs must be up
GLANCE = 0.5  # seconds between two looks at the metrics
AT_ONCE = 4  # keys registered at a time
FILLED_IN = ("partition.", "engine.", "data.root")  # a federation's own, or the starting folder's


class Ready(NamedTuple):
    """A server that sites can join."""

    operator: OperatorFolder
    flower: programs.CommandLine
    nodes: Mapping[str, int]  # the number that Flower gives each site
    proxied: bool

    @property
    def sentence(self) -> str:
        """What of it can be reached, and from where."""
        spec = self.operator.read_spec()
        if self.proxied:
            return (
                f"Sites reach {spec.address}, where nginx lets their traffic pass and nothing else; "
                f"Flower listens on 127.0.0.1:{spec.control_port} alone."
            )
        return (
            f"Without a proxy Flower, its control interface too, listens on 127.0.0.1:{spec.port} alone: "
            "sites on other machines cannot reach it."
        )


class RunRequest(NamedTuple):
    """A run as the operator wants it."""

    recipe: str  # TOML
    run: Path
    least: int  # sites that it needs
    wait: float  # seconds for sites to come
    timeout: float  # seconds for a round


@contextmanager
def serving(operator: OperatorFolder, proxied: bool = True) -> Iterator[Ready]:
    """Flower's server, the sites' keys in it, then the proxy: until the block ends, and nothing after it."""
    spec, program = operator.read_spec(), nginx.require_nginx() if proxied else None
    with ExitStack() as stack:
        stack.enter_context(processes.exclusive(operator.server, "server"))
        processes.terminate_all(operator.flower_home)  # what a killed server left behind
        stack.callback(processes.terminate_all, operator.flower_home)
        make_private_folders([operator.flower_home, operator.logs, operator.server / "proxy"])
        port = spec.control_port if program else spec.port
        processes.check_port_free(port)
        if program:
            processes.check_port_free(spec.port, nginx.local_host(spec))
        log = operator.logs / "flower.log"
        processes.rotate_log(log)
        link = stack.enter_context(
            processes.running(programs.superlink_command(operator, port), operator.flower_home, log)
        )
        _await(lambda: is_ready(port, operator.authority_certificate), link.poll, log)
        line = programs.CommandLine(operator.flower_home)
        line.configure(port, operator.authority_certificate)
        nodes = _register(operator, spec, line)
        write_atomically(operator.server / "nodes.json", json.dumps(nodes))
        if program:  # last: no site meets a server that does not know it yet
            write_nginx_config(operator, spec)
            log = operator.logs / "proxy.log"
            words = nginx.command_line(program, operator)
            front = stack.enter_context(processes.running(words, operator.flower_home, log))
            _await(lambda: _open(operator, spec), front.poll, log)
        yield Ready(operator, line, nodes, bool(program))


def choose_run(operator: OperatorFolder, recipe: Path, chosen: Path | None) -> Run:
    """The run that was asked for, or the last one of this recipe if it is not finished, or a new one."""
    if chosen is not None:
        return Run(chosen.resolve())
    free = next_free(operator.runs, recipe.stem)
    begun = sorted(operator.runs.glob(f"{recipe.stem}-[0-9][0-9][0-9]"))
    if begun and not Run(begun[-1]).finished:
        return Run(begun[-1])
    return Run(free)


def refuse_impossible(order: RunRequest, spec: FederationSpec) -> None:
    """What no federation of these sites could do, said before anybody waits for it."""
    if not 1 <= order.least <= len(spec.sites):
        raise InputError(f"--min-sites is {order.least}: give a number from 1 to {len(spec.sites)}.")
    for option, seconds in (("--wait", order.wait), ("--round-timeout", order.timeout)):
        if not 0 < seconds < math.inf:
            raise InputError(f"{option} is {seconds:g}: give seconds above 0.")


def resolve_resumed(run: Run, recipe: Config) -> Config:
    """What a run is run with: one that is begun goes on with its own configuration, and with no other."""
    if not run.config_file.exists():
        return recipe
    own = config.load(load_run(run.path).config_file)
    old = _flat(own)
    for key, value in _flat(recipe).items():
        if value not in (old.get(key), "auto") and not key.startswith(FILLED_IN):
            raise InputError(
                f"{run.path} was begun with another {key} than the recipe has: "
                "restore the recipe, or begin another run with --run."
            )
    return own


def start(ready: Ready, order: RunRequest) -> str:
    """Start a run, or go on with one; returns Flower's number of it."""
    from fedmcc.deployment.server.bundle import write_bundle

    operator = ready.operator
    order.run.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(operator.server / "bundle")
    options = {
        "recipe": order.recipe,
        "run": str(order.run),
        "sites": ",".join(ready.nodes),
        "nodes": ",".join(f"{name}:{node}" for name, node in ready.nodes.items()),
        "min-sites": order.least,
        "wait": order.wait,
        "round-timeout": order.timeout,
    }
    file = operator.server / "run.toml"
    write_atomically(file, tomli_w.dumps(options), PRIVATE_MODE)
    number = ready.flower.run(operator.server / "bundle", file)
    current = {"run": str(order.run), "number": number}
    write_atomically(operator.server / "current.json", json.dumps(current))
    return number


def follow(
    ready: Ready, run: Run, number: str, rounds: Mapping[str, int]
) -> Iterator[Step | Scored | Finished]:
    """The rounds of a run as they appear on disk, until it is finished; its failure is raised."""
    shown = {(row["stage"], row["round"]) for row in _committed(run)}
    log = ready.operator.logs / "run.log"
    processes.rotate_log(log, 0)
    while True:
        with processes.running(ready.flower.log_command(number), ready.operator.flower_home, log) as words:
            while True:
                over = words.poll() is not None
                yield from _news(run, rounds, shown)
                if run.finished:
                    with suppress(TimeoutExpired):  # its last words are worth a moment
                        words.wait(processes.TERMINATION_SECONDS)
                    yield Finished(run.read_json(run.scores_file.name))
                    return
                if over:
                    break
                time.sleep(GLANCE)
        if ready.flower.status(number).startswith("finished") and not run.finished:
            raise InputError(f"The run ended: {_last_words(log)}")


def _news(run: Run, rounds: Mapping[str, int], shown: set[tuple[str, int]]) -> Iterator[Step | Scored]:
    """The rounds that were not shown yet; they are from now on."""
    for row in run.rows():
        if (place := (row["stage"], row["round"])) not in shown:
            shown.add(place)
            yield Step(-1, row["loss"] or 0.0, 1)
            yield Scored(row, rounds[row["stage"]])


def plan(run: Run, rounds: Mapping[str, int]) -> Plan:
    """How many rounds there are, and how many are done."""
    return Plan(sum(rounds.values()), len(_committed(run)), "rounds")


def stop(operator: OperatorFolder) -> bool:
    """End the server and all it started; whether there was something to end."""
    operator.read_spec()  # says when this is no federation
    owner, left = processes.lock_holder(operator.server), processes.processes_of(operator.flower_home)
    if owner is not None:
        os.kill(owner, signal.SIGTERM)
        processes.wait_until(
            lambda: processes.lock_holder(operator.server) is None, 3 * processes.TERMINATION_SECONDS
        )
    processes.terminate_all(operator.flower_home)
    return owner is not None or bool(left)


def _committed(run: Run) -> list[dict[str, Any]]:
    """The rows that a resumed run keeps."""
    if not run.config_file.exists():
        return []
    return load_run(run.path).rows()[: run.read_json("resume/progress.json").get("rows", 0)]


def _flat(whole: Config) -> dict[str, Any]:
    """A configuration by dotted keys, without what it leaves open."""
    flat: dict[str, Any] = {}
    for key, value in tomllib.loads(config.dump(whole)).items():
        flat |= (
            {f"{key}.{name}": inner for name, inner in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    return flat


def _register(operator: OperatorFolder, spec: FederationSpec, line: programs.CommandLine) -> dict[str, int]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        numbers = pool.map(line.register, map(operator.public_key, spec.sites))
        return dict(zip(spec.sites, numbers, strict=True))


def _open(operator: OperatorFolder, spec: FederationSpec) -> bool:
    try:
        check_connection(replace(spec, host=nginx.local_host(spec)).address, operator.authority_certificate)
    except UnreachableError:
        return False
    return True


def _await(up: Callable[[], bool], ended: Callable[[], int | None], log: Path) -> None:
    """Until a program is up; one that ends instead has said why in its log."""
    processes.wait_until(lambda: ended() is not None or up(), READY)
    if ended() is not None or not up():
        raise InputError(f"{log.stem.capitalize()} did not start: {_last_words(log)}")


def _last_words(log: Path) -> str:
    """The last complaint in a log, in a sentence that says where it is."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [match[1] for line in lines if (match := re.match(r"[\w.]+(?:Error|Exception): (.+)", line))]
    said = [line.strip() for line in lines if line.strip()]
    last = (found or said or ["it said nothing."])[-1]
    return f"{last.rstrip('.')}. Its log is {log}."
