"""Flower's own programs, as an operator calls them on the server's machine."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedmcc.deployment.flower.processes import environment, free_port, running, taken, wait_until
from fedmcc.deployment.setup.layout import OperatorFolder, SiteFolder
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

LINK = "federation"  # what Flower's command line calls our server
SECONDS = 120.0  # for one of its commands, which start slowly


class FlowerError(OSError):
    """A program of Flower's did not do what it was asked."""


@dataclass(frozen=True)
class CommandLine:
    """`flwr`, which reaches the control interface."""

    home: Path

    def aim(self, port: int, authority: Path | None) -> None:
        """Write down where the server is; without an authority it speaks plain text."""
        trust = {"root-certificates": str(authority)} if authority else {"insecure": True}
        link = {"address": f"127.0.0.1:{port}", **trust}
        table = {"superlink": {"default": LINK, LINK: link}}
        write_atomically(self.home / "config.toml", tomli_w.dumps(table))

    def register(self, public_key: Path) -> int:
        """Let a site's key in; returns the number that Flower gives the site."""
        return int(self._call("supernode", "register", public_key, LINK)["node-id"])

    def nodes(self) -> list[dict[str, Any]]:
        """What Flower knows of the sites."""
        return list(self._call("supernode", "list", LINK)["nodes"])

    def run(self, bundle: Path, options: Path, *more: str) -> str:
        """Start a run; returns its number."""
        return str(self._call("run", bundle, LINK, "--run-config", options, *more)["run-id"])

    def status(self, run: str) -> str:
        """Where a run stands, such as `running` or `finished:completed`."""
        return str(self._call("list", LINK, "--run-id", run)["runs"][0]["status"])

    def following(self, run: str) -> Sequence[str]:
        """The words of a program that shows what a run says, and ends with it."""
        return (program("flwr"), "log", run, LINK, "--stream")

    def _call(self, *words: object) -> dict[str, Any]:
        command = [program("flwr"), *map(str, words), "--format", "json"]
        env = environment(self.home)
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise FlowerError(f"`flwr {words[0]}` did not end within {SECONDS:g} seconds") from None
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            answer = {"error-message": (done.stderr or done.stdout).strip()[-300:]}
        if done.returncode or not answer.get("success"):
            raise FlowerError(f"`flwr {words[0]}` failed: {answer.get('error-message', 'no reason given')}")
        return answer


def superlink(operator: OperatorFolder, port: int) -> Sequence[str]:
    """Flower's server, on this machine alone; sites need a key that it knows."""
    return (
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(operator.server / "ca.crt")),
        *("--ssl-certfile", str(operator.certificate)),
        *("--ssl-keyfile", str(operator.key)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    )


@contextmanager
def trial(home: Path, *more: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Flower's server for trials on this machine alone, in plain text: its port and process."""
    port, log = free_port(), home / "flower.log"
    words = (program("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port), *more)
    CommandLine(home).aim(port, None)
    with running(words, home, log) as process:
        wait_until(lambda: taken(port) or process.poll() is not None, SECONDS)
        if process.poll() is not None:
            raise FlowerError(f"Flower's server ended at once: {log} says why")
        yield port, process


def supernode(site: SiteFolder, server: str, options: Path, port: int) -> Sequence[str]:
    """Flower's part of a site; `port` is of this machine alone."""
    return (
        program("flower-supernode"),
        *("--superlink", server),
        *("--root-certificates", str(site.authority_certificate)),
        *("--auth-supernode-private-key", str(site.key)),
        *("--node-config", str(options)),
        *("--host", "127.0.0.1", "--port", str(port)),
    )


def program(name: str) -> str:
    """A program that is installed beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise InputError(f"There is no {path}: pip install 'fedmcc[flower]'.")
    return str(path)
