"""Starts and stops the programs of a server: Flower's server on 127.0.0.1, and nginx in front of it."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from subprocess import Popen

from fedmcc.deployment.flower import pid_files, processes, programs
from fedmcc.deployment.flower.connectivity import UnreachableError, check_connection, is_ready
from fedmcc.deployment.flower.logs import last_error, rotate_log
from fedmcc.deployment.setup import nginx
from fedmcc.deployment.setup.create import write_loopback_certificate, write_nginx_config
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder, make_private_folders
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

START_SECONDS = 120.0  # in which a program must accept connections
RELOAD_SECONDS = 10.0  # in which nginx replaces its workers


class Program:
    """A program of the server, which can be started again."""

    def __init__(self, start: Callable[[ExitStack], Popen[bytes]]) -> None:
        self._start, self._stack = start, ExitStack()
        self.restart()

    @property
    def ended(self) -> bool:
        """Whether the program ended by itself."""
        return self.process.poll() is not None

    def restart(self) -> None:
        """Start the program, after everything that is left of it was stopped."""
        self.stop()
        try:
            self.process = self._start(self._stack)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the program if it is running."""
        self._stack.close()


@dataclass
class RunningServer:
    """A server that sites can join."""

    operator: OperatorFolder
    flower: programs.CommandLine
    nodes: Mapping[str, int]  # Flower's node id of each site
    proxied: bool
    superlink: Program | None = None
    nginx: Program | None = None
    keys: dict[str, bytes] = field(default_factory=dict)  # of the sites, as they are registered

    @property
    def description(self) -> str:
        """The addresses on which the server listens."""
        spec = self.operator.read_spec()
        if self.proxied:
            return (
                f"Sites connect to {spec.address}, where nginx forwards only their requests; "
                f"Flower listens on 127.0.0.1:{spec.control_port} only."
            )
        return (
            f"Without a proxy, Flower and its control interface listen on 127.0.0.1:{spec.port} only: "
            "sites on other machines cannot connect."
        )


@contextmanager
def running_server(operator: OperatorFolder, proxied: bool = True) -> Iterator[RunningServer]:
    """Run Flower's server and nginx until the block ends; no process is left behind."""
    spec, nginx_program = operator.read_spec(), nginx.require_nginx() if proxied else None
    port = spec.control_port if proxied else spec.port
    with ExitStack() as stack:
        stack.enter_context(processes.exclusive(operator.server, "server"))
        processes.terminate_all(operator.flower_home)  # left behind by a server that was killed
        stack.callback(processes.terminate_all, operator.flower_home)
        make_private_folders([operator.flower_home, operator.logs, operator.server / "proxy"])
        processes.check_port_free(port)
        if nginx_program:
            processes.check_port_free(spec.port, nginx.local_host(spec))
        write_loopback_certificate(operator)
        flower = programs.CommandLine(operator.flower_home)
        superlink = Program(partial(_start_superlink, operator, port))
        stack.callback(superlink.stop)
        keys = registered_keys(operator)
        nodes = register_sites(operator, flower)
        server = RunningServer(operator, flower, nodes, proxied, superlink, keys=keys)
        if nginx_program:  # last: sites can connect only after their keys are registered
            server.nginx = Program(partial(_start_nginx, operator, spec, nginx_program))
            stack.callback(server.nginx.stop)
        yield server


def stop(operator: OperatorFolder) -> bool:
    """Stop the server and all processes that it started; returns False if none was running."""
    operator.read_spec()  # raises InputError if the folder is not a federation
    holder, left = processes.lock_holder(operator.server), processes.processes_of(operator.flower_home)
    if holder is not None:
        os.kill(holder, signal.SIGTERM)
        processes.wait_until(
            lambda: processes.lock_holder(operator.server) is None, 3 * processes.TERMINATION_SECONDS
        )
    processes.terminate_all(operator.flower_home)
    return holder is not None or bool(left)


def reload_proxy(operator: OperatorFolder) -> bool:
    """Make a running nginx read its certificate and the registered keys again; returns False without one.

    When it returns, new connections are accepted only by workers that have read them.
    """
    try:
        master = int((operator.server / "nginx.pid").read_text())
    except (OSError, ValueError):
        return False
    workers = pid_files.session_of(operator.flower_home, master)
    if master not in workers:
        return False
    write_nginx_config(operator, operator.read_spec())
    os.kill(master, signal.SIGHUP)
    workers.remove(master)
    processes.wait_until(lambda: all(map(_is_leaving, workers)), RELOAD_SECONDS)
    return True


def _is_leaving(worker: int) -> bool:
    """Whether a worker of nginx accepts no more connections: it has ended, or its title says that it will."""
    try:
        title = Path(f"/proc/{worker}/cmdline").read_bytes()
    except OSError:
        return True
    return not title or b"shutting down" in title


def register_sites(operator: OperatorFolder, flower: programs.CommandLine) -> dict[str, int]:
    """Register the keys of all sites with Flower's server; returns the node id of each site."""
    nodes = _register(operator, operator.read_spec().sites, flower)
    write_atomically(operator.nodes_file, json.dumps(nodes))
    return nodes


def register_new_sites(server: RunningServer) -> list[str]:
    """Register added sites and new keys with a running server; returns the names of these sites."""
    operator = server.operator
    sites = operator.read_spec().sites
    found = {name: _key(operator, name) for name in sites}
    keys = {name: key for name, key in found.items() if key and key != server.keys.get(name)}
    if keys:
        fresh = _register(operator, tuple(keys), server.flower)
        server.nodes = {**server.nodes, **fresh}
        server.keys |= keys
        write_atomically(operator.nodes_file, json.dumps(server.nodes))
        reload_proxy(operator)  # after the registration: nginx lets the new keys pass from now on
    return list(keys)


def _start_superlink(operator: OperatorFolder, port: int, stack: ExitStack) -> Popen[bytes]:
    log = operator.logs / "flower.log"
    rotate_log(log)
    tls = operator.loopback_tls if port == operator.read_spec().control_port else operator.public_tls
    argv = programs.superlink_command(tls, port)
    process = stack.enter_context(processes.running(argv, operator.flower_home, log))
    _wait_for_start(process, lambda: is_ready(port, tls.authority), log)
    programs.CommandLine(operator.flower_home).configure(port, tls.authority)
    return process


def _register(operator: OperatorFolder, sites: Sequence[str], flower: programs.CommandLine) -> dict[str, int]:
    nodes = flower.register([operator.public_key(site) for site in sites])
    return dict(zip(sites, nodes, strict=True))


def registered_keys(operator: OperatorFolder) -> dict[str, bytes]:
    """The public keys of all sites."""
    return {name: _key(operator, name) for name in operator.read_spec().sites}


def _key(operator: OperatorFolder, name: str) -> bytes:
    path = operator.public_key(name)
    return path.read_bytes() if path.exists() else b""


def _start_nginx(
    operator: OperatorFolder, spec: FederationSpec, program: str, stack: ExitStack
) -> Popen[bytes]:
    write_nginx_config(operator, spec)
    log, argv = operator.logs / "proxy.log", nginx.command_line(program, operator)
    process = stack.enter_context(processes.running(argv, operator.flower_home, log))
    _wait_for_start(process, lambda: _accepts_sites(operator, spec), log)
    return process


def _accepts_sites(operator: OperatorFolder, spec: FederationSpec) -> bool:
    local = replace(spec, host=nginx.local_host(spec))
    try:
        check_connection(local.address, operator.authority_certificate)
    except UnreachableError:
        return False
    return True


def _wait_for_start(process: Popen[bytes], started: Callable[[], bool], log: Path) -> None:
    """Wait until a program accepts connections; raises InputError with the end of its log if it does not."""
    processes.wait_until(lambda: process.poll() is not None or started(), START_SECONDS)
    if process.poll() is not None or not started():
        raise InputError(f"{log.stem.capitalize()} did not start: {last_error(log)}")
