"""Files that record started processes, by which they are found even if the process that started them is gone.

A record has the start time of its process, and does not match another process that gets the same id later.
nginx needs records: it overwrites its environment, and its workers outlive a master that is killed.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")


class ProcessFacts(NamedTuple):
    """What the kernel reports about a process."""

    name: str
    session: int
    start: int  # clock ticks after the start of the machine


def record(home: Path, process: int) -> None:
    """Record a process that leads a session (on Linux; elsewhere nothing is recorded)."""
    if (facts := read_facts(process)) is None:
        return
    folder = home / "pids"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"start": facts.start, "name": facts.name, "boot": _boot_id()}
    (folder / str(process)).write_text(json.dumps(content))


def forget(home: Path, process: int) -> None:
    """Delete the record of a process."""
    (home / "pids" / str(process)).unlink(missing_ok=True)


def forget_ended(home: Path) -> None:
    """Delete the records of sessions without a living process."""
    for leader in _leaders(home):
        if not session_of(home, leader):
            forget(home, leader)


def recorded(home: Path) -> list[int]:
    """The living processes of all recorded sessions."""
    found = {process for leader in _leaders(home) for process in session_of(home, leader)}
    return sorted(found)


def session_of(home: Path, leader: int) -> list[int]:
    """The living processes of a recorded session; of a session without its leader, those with its name."""
    try:
        content: dict[str, Any] = json.loads((home / "pids" / str(leader)).read_text())
    except (OSError, ValueError):
        return []
    alive = read_facts(leader)
    if content["boot"] != _boot_id() or (alive and alive.start != content["start"]):
        return []
    members = [
        process
        for process, facts in _all_processes()
        if facts.session == leader and (alive or _is_left_behind(facts, content))
    ]
    return sorted(members)


def read_facts(process: int) -> ProcessFacts | None:
    """The facts of a living process; None if it has ended."""
    try:
        text = (PROC / str(process) / "stat").read_text()
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name may contain spaces and parentheses
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    return ProcessFacts(head.partition("(")[2], int(fields[3]), int(fields[19]))


def _leaders(home: Path) -> list[int]:
    return [int(path.name) for path in (home / "pids").glob("[0-9]*")]


def _all_processes() -> Iterator[tuple[int, ProcessFacts]]:
    for path in PROC.glob("[0-9]*"):
        if (facts := read_facts(int(path.name))) is not None:
            yield int(path.name), facts


def _is_left_behind(facts: ProcessFacts, content: dict[str, Any]) -> bool:
    """Whether a process was started by the recorded leader, which has ended."""
    return bool(facts.name == content["name"] and facts.start >= content["start"])


def _boot_id() -> str:
    """The id of this start of the machine."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""
