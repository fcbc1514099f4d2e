"""Flower's programs: `flwr` (control), `flower-superlink` (server) and `flower-supernode` (site)."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedmcc.deployment.flower.processes import environment, free_port, is_listening, running, wait_until
from fedmcc.deployment.setup.layout import SiteFolder, TlsFiles
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

CONNECTION = "federation"  # the name of our server in the configuration of `flwr`
COMMAND_SECONDS = 120.0  # timeout of a command; Flower's programs start slowly


class FlowerError(OSError):
    """A program of Flower failed."""


@dataclass(frozen=True)
class CommandLine:
    """`flwr`, which talks to the control interface of a server."""

    home: Path

    def configure(self, port: int, authority: Path | None) -> None:
        """Write the address of the server to Flower's configuration; without an authority, without TLS."""
        trust = {"root-certificates": str(authority)} if authority else {"insecure": True}
        connection = {"address": f"127.0.0.1:{port}", **trust}
        table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        write_atomically(self.home / "config.toml", tomli_w.dumps(table))

    def register(self, public_keys: Sequence[Path]) -> list[int]:
        """Register the public keys of sites; returns Flower's node id of each."""
        argv = (sys.executable, "-m", "fedmcc.deployment.flower.register", *map(str, public_keys))
        return list(map(int, self._run(argv, "registration of keys")["node-ids"]))

    def nodes(self) -> list[dict[str, Any]]:
        """The registered sites with their state."""
        return list(self._call("supernode", "list", CONNECTION)["nodes"])

    def run(self, bundle: Path, *more: str) -> str:
        """Start a run; returns its id."""
        return str(self._call("run", bundle, CONNECTION, *more)["run-id"])

    def status(self, run: str) -> str:
        """The status of a run, such as `running` or `finished:completed`."""
        return str(self._call("list", CONNECTION, "--run-id", run)["runs"][0]["status"])

    def log_command(self, run: str) -> Sequence[str]:
        """The command that prints the log of a run until the run ends."""
        return (find_program("flwr"), "log", run, CONNECTION, "--stream")

    def _call(self, command: str, *arguments: object) -> dict[str, Any]:
        argv = (find_program("flwr"), command, *map(str, arguments), "--format", "json")
        return self._run(argv, f"flwr {command}")

    def _run(self, argv: Sequence[str], name: str) -> dict[str, Any]:
        """The JSON that a program prints; raises FlowerError if it reports a failure or nothing readable."""
        env, timeout = environment(self.home), COMMAND_SECONDS
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise FlowerError(f"`{name}` did not end within {timeout:g} seconds") from None
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            answer = {"error-message": (done.stderr or done.stdout).strip()[-300:]}
        if done.returncode or not answer.get("success"):
            reason = answer.get("error-message", "no reason given")
            raise FlowerError(f"`{name}` failed: {reason}")
        return answer


def superlink_command(tls: TlsFiles, port: int) -> Sequence[str]:
    """The command that starts Flower's server on 127.0.0.1; only sites with a registered key can join."""
    return (
        find_program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(tls.authority)),
        *("--ssl-certfile", str(tls.certificate)),
        *("--ssl-keyfile", str(tls.key)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    )


def supernode_command(site: SiteFolder, server: str, options: Path, port: int) -> Sequence[str]:
    """The command that starts Flower's client at a site; its processes connect to `port` on 127.0.0.1."""
    return (
        find_program("flower-supernode"),
        *("--superlink", server),
        *("--root-certificates", str(site.authority_certificate)),
        *("--auth-supernode-private-key", str(site.key)),
        *("--node-config", str(options)),
        *("--host", "127.0.0.1", "--port", str(port)),
    )


@contextmanager
def local_superlink(home: Path, *more: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Flower's server on 127.0.0.1 without TLS, for simulations and tests; yields its port and process."""
    port, log = free_port(), home / "flower.log"
    server = (find_program("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port))
    CommandLine(home).configure(port, None)
    with running((*server, *more), home, log) as process:
        wait_until(lambda: is_listening(port) or process.poll() is not None, COMMAND_SECONDS)
        if process.poll() is not None:
            raise FlowerError(f"Flower's server ended during its start: see {log}")
        yield port, process


def find_program(name: str) -> str:
    """The path of a program that is installed beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise InputError(f"{path} does not exist: pip install 'fedmcc[flower]'.")
    return str(path)
