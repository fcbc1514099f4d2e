"""A site that takes part: Flower's program is started, watched, and started again after the server went."""

import re
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path

import tomli_w

from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.flower.connectivity import UnreachableError, check_connection
from fedmcc.deployment.setup.layout import PRIVATE_MODE, SiteFolder, make_private_folders
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

PAUSE = 3.0  # seconds between two attempts to reach the server
PATIENCE = 3  # refusals of a key in a row; a server that has just come back may not know its sites yet
GLANCE = 0.5
KEPT = 50  # lines at either end of a log, to tell why a connection ended
OURS = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (.+)")  # a line of fedmcc's in the log
CONNECTED = "SuperNode ID:"
UNKNOWN_KEY = "[code: 2004]"


def run_site(site: SiteFolder, data: Path) -> Iterator[str]:
    """Take part until interrupted; yields sentences for the site's own screen."""
    name, server = site.read()
    data = data.resolve()
    if not data.is_dir():
        raise InputError(f"There is no folder {data}: give the folder of your images as --data.")
    with processes.exclusive(site.path, "site"):
        processes.terminate_all(site.flower_home)  # what a killed site left behind
        make_private_folders([site.flower_home, site.logs, site.state])
        options = site.path / "node.toml"
        table = {"client": name, "state-dir": str(site.state), "data": str(data)}
        write_atomically(options, tomli_w.dumps(table), PRIVATE_MODE)
        try:
            yield from _reconnect(site, server, options)
        finally:
            processes.terminate_all(site.flower_home)


def _reconnect(site: SiteFolder, server: str, options: Path) -> Iterator[str]:
    refusals = 0
    while True:
        yield from _reach(site, server)
        words = programs.supernode_command(site, server, options, processes.free_port())
        log = site.logs / "site.log"
        processes.rotate_log(log)
        start = log.stat().st_size if log.exists() else 0
        with processes.running(words, site.flower_home, log) as process:
            said = yield from _watch(process, log, start)
        refusals = 0 if any(CONNECTED in line for line in said) else refusals + 1
        if refusals >= PATIENCE:
            raise InputError(f"{server} {_refusal(said)} The log is {log}.")
        yield (
            f"{server} {_refusal(said)} Trying again." if refusals else "The connection ended: trying again."
        )
        processes.terminate_all(site.flower_home)  # work for a server that is gone
        time.sleep(PAUSE)


def _reach(site: SiteFolder, server: str) -> Iterator[str]:
    """Wait for the server."""
    told = False
    while True:
        try:
            check_connection(server, site.authority_certificate)
            return
        except UnreachableError as error:
            if not told:
                yield f"{server} does not answer ({error}): waiting for it."
                told = True
            time.sleep(PAUSE)


def _watch(process: subprocess.Popen[bytes], log: Path, start: int) -> Generator[str, None, list[str]]:
    """What is worth telling of a log as it grows; returns its first and last lines."""
    first: list[str] = []
    last: deque[str] = deque(maxlen=KEPT)
    for line in _lines(process, log, start):
        (first if len(first) < KEPT else last).append(line)
        if CONNECTED in line:
            yield "Connected: taking part."
        elif ours := OURS.match(line):
            yield ours[1]
    return [*first, *last]


def _lines(process: subprocess.Popen[bytes], log: Path, start: int) -> Iterator[str]:
    """The lines of a log from a place on, until the process has ended."""
    with log.open("rb") as file:
        file.seek(start)
        over, line = False, b""
        while not over:
            over = process.poll() is not None
            while part := file.readline():
                line += part
                if line.endswith(b"\n"):
                    yield line.decode(errors="replace").rstrip()
                    line = b""
            time.sleep(0 if over else GLANCE)


def _refusal(said: list[str]) -> str:
    """Why a site was not let in, from what Flower says before its advice."""
    if any(UNKNOWN_KEY in line for line in said):
        return (
            "does not know the key of this site: ask the operator to add the site, "
            "or for the folder that was made for it."
        )
    lines = [line.strip() for line in said if line.strip() and "://" not in line]
    return f"does not let this site in: {lines[-1].rstrip('.') if lines else 'no reason was given'}."
