"""Child processes: how they start, and how they exit together with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any


def start_process(
    target: Callable[..., None], arguments: Sequence[Any], preload: Sequence[str], daemon: bool = True
) -> tuple[ForkServerProcess, Connection]:
    """Start a process that runs `target(pipe, *arguments)`; returns it and the parent's end of the pipe.

    It is forked from a server process that has only imported `preload`, which is fast and safe. A daemon
    cannot have child processes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, *arguments), daemon=daemon)
    # The child inherits the blocked signal: only the parent handles an interruption from the keyboard.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
    return process, pipe


def exit_with_parent() -> None:
    """In a child process: ignore interruptions from the keyboard, and exit when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    """Exit at once when the parent exits, even if it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
