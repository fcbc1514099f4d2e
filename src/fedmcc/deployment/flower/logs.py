"""Log files of Flower's programs: fedmcc's lines in them, their rotation, and the error at their end."""

import logging
import os
import re
import shutil
from pathlib import Path

MAX_LOG_BYTES = 10 * 2**20
LINE_FORMAT = "%(asctime)s %(message)s"
LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (.+)")  # as LINE_FORMAT writes it


def set_up_logging() -> None:
    """Log messages of fedmcc inside the processes that Flower starts."""
    logging.basicConfig(format=LINE_FORMAT)
    logging.getLogger("fedmcc").setLevel(logging.INFO)


def message_of(line: str) -> str | None:
    """The message of a line that fedmcc logged; None for lines of Flower."""
    match = LINE.match(line)
    return match[1] if match else None


def rotate_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Rename a log that is larger than this, so that a new one is started; one old log is kept."""
    if log.exists() and log.stat().st_size > max_bytes:
        log.replace(log.with_suffix(".old.log"))


def shorten_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move the content of a log that is larger than this to the old log, while a program appends to it.

    The file stays open: the workers of an nginx that was started by root could not open a new one.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_suffix(".old.log"))
        log.with_suffix(".old.log").chmod(0o600)
        os.truncate(log, 0)


def last_error(log: Path) -> str:
    """The last error in a log, else its last line, with the path of the log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [match[1] for line in lines if (match := re.match(r"[\w.]+(?:Error|Exception): (.+)", line))]
    texts = [line.strip() for line in lines if line.strip()]
    last = (errors or texts or ["the log is empty"])[-1]
    return f"{last.rstrip('.')}. See {log}."
