"""Runs Flower's programs as processes with their own FLWR_HOME and log files, and leaves none behind.

Processes are found by the FLWR_HOME in their environment, even if their parent was killed: Flower's programs
start others in new sessions, which a signal to a process group does not reach.
They are also found by `pid_files`.
"""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmcc.deployment.flower import pid_files
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import try_lock

FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TERMINATION_SECONDS = 10.0  # between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1  # an option of prctl(2)


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: their home, no telemetry, and no proxy on this machine."""
    local = ",".join(filter(None, (os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost")))
    folders = (str(own_programs(home)), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    path = os.pathsep.join(folders)
    own = {"FLWR_HOME": str(home), "PATH": path, "NO_PROXY": local, "no_proxy": local}
    return {**os.environ, **FLOWER_SETTINGS, **own}


def own_programs(home: Path) -> Path:
    """The folder of programs that Flower's programs of this home find first."""
    return home / "bin"


@contextmanager
def running(argv: Sequence[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the background until the block ends; its output is appended to the log."""
    with log.open("ab") as file:
        log.chmod(0o600)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(home),
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
    pid_files.record(home, process.pid)
    try:
        yield process
    finally:
        terminate(process)
        _kill(pid_files.session_of(home, process.pid))  # workers of an nginx whose master was killed
        pid_files.forget(home, process.pid)


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process; kill its process group if it does not end in time."""
    process.terminate()
    try:
        process.wait(TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def terminate_all(home: Path, keep: Collection[int] = ()) -> None:
    """Terminate every process with this FLWR_HOME except `keep`; kill those that do not end in time."""

    def left() -> list[int]:
        return [process for process in processes_of(home) if process not in keep]

    _kill(left(), signal.SIGTERM)
    if not wait_until(lambda: not left(), TERMINATION_SECONDS):
        _kill(left())
        wait_until(lambda: not left(), TERMINATION_SECONDS)
    pid_files.forget_ended(home)


def processes_of(home: Path) -> list[int]:
    """The ids of all other processes with this FLWR_HOME (on Linux; elsewhere none is found)."""
    entry, found = f"FLWR_HOME={home}".encode(), set(pid_files.recorded(home))
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # of another user, or ended meanwhile
            if entry in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return sorted(found - {os.getpid()})


def _kill(processes: Collection[int], number: signal.Signals = signal.SIGKILL) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


@contextmanager
def exclusive(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder; raises InputError if another process runs `what` from it.

    The operating system releases the lock when the process ends, also when it is killed.
    """
    with (folder / "lock").open("a+") as file:
        # One second: `lock_holder` in another process takes the lock for a moment.
        if not wait_until(lambda: try_lock(file.fileno()), 1.0):
            raise InputError(f"The {what} of {folder} is running already: stop it first.")
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def lock_holder(folder: Path) -> int | None:
    """The id of the process that holds the lock of this folder, or None."""
    path = folder / "lock"
    if not path.exists():
        return None
    with path.open() as file:
        return None if try_lock(file.fileno()) else int(file.read() or 0) or None


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that the program ends its processes before it exits."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A port of this machine on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether a program listens on this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def check_port_free(port: int, host: str = "127.0.0.1") -> None:
    """Raise InputError if no program could listen on this port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            reason = error.strerror or error
            raise InputError(
                f"Cannot listen on port {port} of {host}: {reason}. Choose another port."
            ) from None
        raise InputError(
            f"Port {port} is in use by another program: stop that program, or choose another port."
        ) from None


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds; returns False if it does not within this time."""
    until = time.monotonic() + seconds
    while not (reached := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return reached


def _end_with_parent() -> Callable[[], None] | None:
    """A function that makes the kernel terminate a child process when its parent dies (Linux only)."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
