"""Programs that others wrote, run by ours: with their own home, logged to files, and none left behind.

A process is known by its home (FLWR_HOME) in its environment, also when whoever started it was killed;
Flower's programs start others in sessions of their own, which a process group would not reach.
"""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import try_lock

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
GRACE = 10.0  # seconds to end by oneself
LARGEST = 10 * 2**20  # bytes of a log before it is put aside
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs are told: their home, and to call nobody."""
    local = ",".join(filter(None, (os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost")))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    own = {"FLWR_HOME": str(home), "PATH": path, "NO_PROXY": local, "no_proxy": local}
    return {**os.environ, **SWITCHES, **own}


@contextmanager
def running(words: Sequence[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside ours, ended on leaving; its words go to the log."""
    with log.open("ab") as file:
        log.chmod(0o600)
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(home),
            start_new_session=True,
            preexec_fn=_tied(),
        )
    try:
        yield process
    finally:
        end(process)


def set_aside(log: Path, most: int = LARGEST) -> None:
    """Begin a new log when one has grown beyond so many bytes; the one before is kept."""
    if log.exists() and log.stat().st_size > most:
        log.replace(log.with_suffix(".old.log"))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, then make it."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sweep(home: Path) -> None:
    """End every process that has this home, whoever started it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in at_home(home):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        wait_until(lambda: not at_home(home), GRACE)


def at_home(home: Path) -> list[int]:
    """The processes that have this home, where the system tells (Linux)."""
    mark, found = f"FLWR_HOME={home}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or ended since
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Be the only one that runs `what` from this folder; the lock ends with the process, however it ends."""
    with (folder / "lock").open("a+") as file:
        if not wait_until(lambda: try_lock(file.fileno()), 1.0):  # who only asks has it for a moment
            raise InputError(f"The {what} of {folder} is running already: stop it first.")
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of this folder, if any does."""
    path = folder / "lock"
    if not path.exists():
        return None
    with path.open() as file:
        return None if try_lock(file.fileno()) else int(file.read() or 0) or None


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """A request to terminate is an interruption: what was begun is put in order."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def taken(port: int) -> bool:
    """Whether a program listens on this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def refuse_taken(port: int, host: str = "127.0.0.1") -> None:
    """A port that another program has cannot be ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            reason = error.strerror or error
            raise InputError(f"Cannot listen on port {port} of {host}: {reason}. Choose another.") from None
        raise InputError(f"Port {port} is in use by another program: stop that, or choose another.") from None


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether something came to be in time."""
    until = time.monotonic() + seconds
    while not (reached := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return reached


def _tied() -> Callable[[], None] | None:
    """Where the system can (Linux), a program is asked to end when ours was killed."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(DEATH_SIGNAL, signal.SIGTERM)
