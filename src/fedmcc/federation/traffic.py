"""Bytes that a server and its clients exchange."""

from collections.abc import Sequence
from typing import NamedTuple

from fedmcc.messages import Discarded, Task, Update


class Traffic(NamedTuple):
    """Bytes sent to a client and received from it."""

    down: int
    up: int


def add_traffic(
    traffic: dict[int, Traffic], tasks: Sequence[Task], answers: Sequence[Update | Discarded]
) -> None:
    """Add the bytes of tasks and answers to those of their clients."""
    none = Traffic(0, 0)
    for task in tasks:
        down, up = traffic.get(task.client, none)
        traffic[task.client] = Traffic(down + task.bytes, up)
    for update in answers:
        down, up = traffic.get(update.client, none)
        traffic[update.client] = Traffic(down, up + update.bytes)
