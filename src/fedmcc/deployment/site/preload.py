"""Answers each message in a copy of a process that has already loaded Flower, torch and this package.

Flower starts the program `flwr-clientapp` for each message, and loading takes it 4 to 5 CPU seconds. A site
puts a script of that name first in the PATH of Flower's programs. The script hands its arguments over through
a pipe to this process, which forks: a copy takes milliseconds. It has no threads of its own and has not
computed anything, so that copies are safe. On other systems than Linux, each message loads `clientapp`.

python -m fedmcc.deployment.site.preload PIPE
"""

import json
import logging
import os
import random
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedmcc.deployment.flower import processes

PROGRAM = "flwr-clientapp"
FALLBACK = "fedmcc-clientapp"
START_SECONDS = 30.0  # until the pipe is read; until then, messages load the program themselves


@contextmanager
def preloaded(home: Path, log: Path) -> Iterator[Sequence[int]]:
    """Keep a loaded process for Flower's programs of this home; yields its id, if there is one."""
    programs = processes.own_programs(home)
    module = (sys.executable, "-m", "fedmcc.deployment.site.clientapp")
    if not sys.platform.startswith("linux"):
        _write_script(programs / PROGRAM, module)
        yield ()
        return
    pipe = home / "messages"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, mode=0o600)
    _write_script(programs / FALLBACK, module)
    hand_over = Path(__file__).with_name("hand_over.py")
    _write_script(programs / PROGRAM, (sys.executable, "-I", "-S", hand_over, pipe, programs / FALLBACK))
    argv = (sys.executable, "-m", "fedmcc.deployment.site.preload", str(pipe))
    with processes.running(argv, home, log) as process:
        processes.wait_until(lambda: process.poll() is not None or _is_read(pipe), START_SECONDS)
        yield (process.pid,)


def _is_read(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _write_script(path: Path, argv: Sequence[object]) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, argv))} "$@"\n')
    path.chmod(0o700)


def main() -> None:
    """Fork for each line of the pipe; lines that arrive while loading wait in it."""
    pipe = os.open(sys.argv[1], os.O_RDWR)  # also open for writing: without it the pipe would end at times
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that have ended leave nothing behind
    with os.fdopen(pipe) as lines:
        for line in lines:
            if os.fork() == 0:
                os.close(pipe)
                _answer(json.loads(line))


def _load() -> None:
    import fedmcc.deployment.site.clientapp  # noqa: F401


def _answer(arguments: list[str]) -> None:
    """Be `flwr-clientapp` with these arguments, and end."""
    from fedmcc.deployment.site import clientapp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()  # otherwise all copies wait equally long before they try again
    sys.argv = [PROGRAM, *arguments]
    code = 1
    try:
        clientapp.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # a copy must never continue as the process it was copied from
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
