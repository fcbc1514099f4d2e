"""Processes that belong to this one: how they start, and how they end with it."""

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
    """A process that runs `target(pipe, *arguments)`, and this end of the pipe; a daemon has no children.

    It is forked from a process that has imported `preload` and done nothing: at once, and safe.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, *arguments), daemon=daemon)
    # What is blocked here is blocked there: an interruption from the keyboard is the parent's affair.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
    return process, pipe


def exit_with_parent() -> None:
    """For the process itself: the keyboard does not interrupt it, and it ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Even a parent that was killed leaves nobody behind, whatever this process is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
