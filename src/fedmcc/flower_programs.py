"""Flower's own programs as child processes: offline, without telemetry, and gone when a block ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from fedmcc.errors import InputError

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # it would ask a package index, for each run
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CONNECTION = "fedmcc"  # the name of the server in Flower's configuration
STARTING = 120.0  # seconds for a program to be ready
ENDING = 20.0  # seconds for a program to end before it is killed


def need(extra: str, *modules: str) -> None:
    """Refuse in a sentence to go on without an extra."""
    if any(find_spec(module) is None for module in modules):
        raise InputError(f"This needs Flower, which is not installed: pip install 'fedmcc[{extra}]'.")


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: its switches, a home of its own, and this Python's programs first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": path}


def free_port() -> int:
    """A port on this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def program(home: Path, name: str, *words: str, log: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's programs, its words in a log file of the home folder; it ends with the block."""
    with (home / f"{log or name}.log").open("ab") as file:
        process = subprocess.Popen(
            [name, *words],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a program to end, then see that it and its children do."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def superlink(home: Path, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Flower's server on this machine alone, ready; gives its port and process."""
    port = free_port()
    connection = {"address": f"127.0.0.1:{port}", "insecure": True}
    table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(table))
    address = ("--insecure", "--host", "127.0.0.1", "--port", str(port))
    with program(home, "flower-superlink", *address, *words) as process:
        _wait_for(port, process)
        yield port, process


def submit(home: Path, bundle: Path, run_config: Mapping[str, Any], *words: str) -> str:
    """Start a run of the bundle; gives Flower's number for it."""
    given = home / "run.toml"
    given.write_text(tomli_w.dumps(dict(run_config)))
    answer = flwr(home, "run", str(bundle), CONNECTION, "--run-config", str(given), *words)
    return str(answer["run-id"])


def status(home: Path, run: str) -> str:
    """How a run of Flower stands, such as `running` or `finished:failed`."""
    answer = flwr(home, "list", CONNECTION, "--run-id", run)
    return str(answer["runs"][0]["status"])


def flwr(home: Path, *words: str) -> dict[str, Any]:
    """What Flower's command says, in JSON."""
    done = subprocess.run(
        ["flwr", *words, "--format", "json"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = {}
    if not isinstance(answer, dict) or not answer.get("success"):
        reason = answer.get("error-message") if isinstance(answer, dict) else None
        raise InputError(f"`flwr {words[0]}` failed: {reason or done.stderr.strip()[-300:]}")
    return answer


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + STARTING
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise InputError("Flower's server did not start: its log flower-superlink.log says why.")
