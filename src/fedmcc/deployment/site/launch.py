"""Runs a site: starts Flower's program, watches its log, and reconnects when the connection ends."""

import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import tomli_w

from fedmcc.data.folder import Folder
from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.flower.connectivity import ExpiredError, UnreachableError, check_connection
from fedmcc.deployment.flower.logs import message_of, shorten_log
from fedmcc.deployment.setup.certificates import load_site_key
from fedmcc.deployment.setup.layout import PRIVATE_MODE, SiteFolder, make_private_folders
from fedmcc.deployment.site.check import require_encoder
from fedmcc.deployment.site.policy import parse_policy, required
from fedmcc.deployment.site.preload import preloaded
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically

RETRY_SECONDS = 3.0  # between two attempts to connect
MAX_REFUSALS = 3  # in a row; a server that has just restarted may not have registered its sites yet
POLL_SECONDS = 0.5  # between two reads of the log
KEPT_LINES = 50  # of the start and of the end of a log, to find out why a connection ended
CONNECTED = "SuperNode ID:"  # in a line of Flower's log
RETRYING = "Connection attempt failed, retrying"  # in a line of Flower's log, which does not give the reason
UNKNOWN_KEY = "[code: 2004]"


def run_site(
    site: SiteFolder, data: Path, encoder: Path | None = None, require: Sequence[str] = ()
) -> Iterator[str]:
    """Take part in the federation until interrupted; yields messages for the terminal of the site.

    `encoder` is the place of a pretrained encoder at this site; `require` adds to the site's policy.
    """
    name, server = site.read()
    load_site_key(site.key)  # raises InputError if it is damaged
    required(parse_policy(site.read_policy()), ",".join(require))  # raises InputError before it connects
    data = data.resolve()
    _require_images(data)
    if encoder is not None:
        require_encoder(encoder)
    with processes.exclusive(site.path, "site"):
        processes.terminate_all(site.flower_home)  # left behind by a site that was killed
        make_private_folders([site.flower_home, site.logs, site.state])
        options = site.path / "node.toml"
        folders = {"folder": str(site.path.resolve()), "state-dir": str(site.state), "data": str(data)}
        table = {"client": name, **folders, "require": ",".join(require)}
        if encoder is not None:
            table["encoder"] = str(encoder.resolve())
        write_atomically(options, tomli_w.dumps(table), PRIVATE_MODE)
        log = site.logs / "site.log"
        try:
            yield from _wait_for_server(site, server, joined=False)  # before anything slow is loaded
            with preloaded(site.flower_home, log) as loaded:
                yield from _reconnect(site, server, options, loaded)
        finally:
            processes.terminate_all(site.flower_home)


def _require_images(data: Path) -> None:
    """Raise InputError if --data is not a folder, or has no files; whether they are images is not checked."""
    if data.is_file():
        raise InputError(f"{data} is a file: give the folder that holds your images as --data.")
    if not data.is_dir():
        raise InputError(f"The folder {data} does not exist: give the folder of your images as --data.")
    try:
        Folder(root=data, labels=False).listing()
    except InputError:  # its sentence names data.root
        raise InputError(
            f"The folder {data} is empty: put images in it, or give another folder as --data."
        ) from None


def _reconnect(site: SiteFolder, server: str, options: Path, keep: Sequence[int]) -> Iterator[str]:
    """Connect again whenever the connection ends; raises InputError if the server keeps refusing the site.

    Processes to `keep` stay when a connection has ended.
    """
    refusals, joined = 0, False
    while True:
        yield from _wait_for_server(site, server, joined)
        argv = programs.supernode_command(site, server, options, processes.free_port())
        log = site.logs / "site.log"
        shorten_log(log)  # the preloaded process keeps it open
        start = log.stat().st_size if log.exists() else 0
        with processes.running(argv, site.flower_home, log) as process:
            lines = yield from _watch(_lines(process, log, start), lambda: _refused_certificate(site, server))
        refusals = 0 if any(CONNECTED in line for line in lines) else refusals + 1
        joined = joined or not refusals
        if refusals >= MAX_REFUSALS:
            raise InputError(f"{server} {_refusal(lines)} The log is {log}.")
        yield (
            f"{server} {_refusal(lines)} Trying again." if refusals else "The connection ended: reconnecting."
        )
        processes.terminate_all(site.flower_home, keep)  # work for a connection that has ended
        time.sleep(RETRY_SECONDS)


def _wait_for_server(site: SiteFolder, server: str, joined: bool) -> Iterator[str]:
    """Wait until the server can be reached; yields one message if it cannot be reached at once.

    A site that has joined also waits for the operator to renew an expired certificate.
    """
    reported: set[type[Exception]] = set()
    while True:
        try:
            check_connection(server, site.authority_certificate)
            return
        except (UnreachableError, ExpiredError) as error:
            expired = isinstance(error, ExpiredError)
            if expired and not joined:
                raise
            if type(error) not in reported:
                yield (
                    f"{error} Waiting." if expired else f"{server} does not answer ({error}): waiting for it."
                )
            reported.add(type(error))
            time.sleep(RETRY_SECONDS)


def _watch(lines: Iterable[str], reason: Callable[[], str | None]) -> Generator[str, None, list[str]]:
    """Yield the messages in a growing log; returns its first and last lines when it ends.

    If Flower tries to connect again and again, `reason` may explain why; the explanation is yielded once.
    """
    first: list[str] = []
    last: deque[str] = deque(maxlen=KEPT_LINES)
    explained = None
    for line in lines:
        (first if len(first) < KEPT_LINES else last).append(line)
        if CONNECTED in line:
            yield "Connected."
        elif message := message_of(line):
            yield message
        elif RETRYING in line and explained is None:
            explained = reason()
            yield from [explained] if explained else []
    return [*first, *last]


def _refused_certificate(site: SiteFolder, server: str) -> str | None:
    """Why the certificate of the server is refused, for instance because it expired; None if it is not."""
    try:
        check_connection(server, site.authority_certificate)
    except UnreachableError:
        pass
    except InputError as error:
        return str(error)
    return None


def _lines(process: subprocess.Popen[bytes], log: Path, start: int) -> Iterator[str]:
    """The lines of a log from a byte offset on, until the process has ended."""
    with log.open("rb") as file:
        file.seek(start)
        ended, line = False, b""
        while not ended:
            ended = process.poll() is not None
            while part := file.readline():
                line += part
                if line.endswith(b"\n"):
                    yield line.decode(errors="replace").rstrip()
                    line = b""
            time.sleep(0 if ended else POLL_SECONDS)


def _refusal(lines: list[str]) -> str:
    """Why the server refused the site: the last line of Flower's log without a link to its documentation."""
    if any(UNKNOWN_KEY in line for line in lines):
        return (
            "does not accept the key of this site: ask the operator to add the site, "
            "or for the folder that was created for it."
        )
    texts = [line.strip() for line in lines if line.strip() and "://" not in line]
    return f"refused this site: {texts[-1].rstrip('.') if texts else 'no reason was given'}."
