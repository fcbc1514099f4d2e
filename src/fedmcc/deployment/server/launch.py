"""Starts and stops the programs of a server: Flower's server on 127.0.0.1, and nginx in front of it."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.flower.connectivity import UnreachableError, check_connection, is_ready
from fedmcc.deployment.flower.logs import last_error, rotate_log
from fedmcc.deployment.setup import nginx
from fedmcc.deployment.setup.create import write_loopback_certificate, write_nginx_config
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder, make_private_folders
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

START_SECONDS = 120.0  # in which a program must accept connections


class RunningServer(NamedTuple):
    """A server that sites can join."""

    operator: OperatorFolder
    flower: programs.CommandLine
    nodes: Mapping[str, int]  # Flower's node id of each site
    proxied: bool

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
        flower = _start_superlink(operator, port, stack)
        nodes = _register(operator, spec, flower)
        write_atomically(operator.server / "nodes.json", json.dumps(nodes))
        if nginx_program:  # last: sites can connect only after their keys are registered
            _start_nginx(operator, spec, nginx_program, stack)
        yield RunningServer(operator, flower, nodes, proxied)


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


def _start_superlink(operator: OperatorFolder, port: int, stack: ExitStack) -> programs.CommandLine:
    log = operator.logs / "flower.log"
    rotate_log(log)
    tls = operator.loopback_tls if port == operator.read_spec().control_port else operator.public_tls
    argv = programs.superlink_command(tls, port)
    process = stack.enter_context(processes.running(argv, operator.flower_home, log))
    _wait_for_start(process, lambda: is_ready(port, tls.authority), log)
    flower = programs.CommandLine(operator.flower_home)
    flower.configure(port, tls.authority)
    return flower


def _register(operator: OperatorFolder, spec: FederationSpec, flower: programs.CommandLine) -> dict[str, int]:
    nodes = flower.register([operator.public_key(site) for site in spec.sites])
    return dict(zip(spec.sites, nodes, strict=True))


def _start_nginx(operator: OperatorFolder, spec: FederationSpec, program: str, stack: ExitStack) -> None:
    write_nginx_config(operator, spec)
    log, argv = operator.logs / "proxy.log", nginx.command_line(program, operator)
    process = stack.enter_context(processes.running(argv, operator.flower_home, log))
    _wait_for_start(process, lambda: _accepts_sites(operator, spec), log)


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
