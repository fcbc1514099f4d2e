"""The engine of a federation: sends the tasks of a round to the sites and collects their replies."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedmcc.deployment.flower.records import (
    PackedStates,
    Reply,
    UnreadableError,
    pack_task,
    unpack_reply,
)
from fedmcc.deployment.messages import SiteTask
from fedmcc.deployment.server.membership import POLL_SECONDS, Membership, pull_reply
from fedmcc.federation.engines.base import Engine, Event
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import StageRound, StateLost, Task, Unsent, Update
from fedmcc.methods.base import Stage

log = logging.getLogger(__name__)

TASK_TIMEOUTS = 2  # round timeouts after which a task expires: a reply after the first one is not averaged
CONNECTION_LOST = 5  # error codes of Flower
ERRORS = {3: "its reply was lost.", CONNECTION_LOST: "its connection was lost.", 8: "its process ended."}


class TaskHeader(NamedTuple):
    """The part of a `SiteTask` that is the same for all tasks of a run."""

    run: str
    config: str
    fingerprint: str


class OverdueTask(NamedTuple):
    """A task that was not answered in its round; its site gets no other task until it expires."""

    client: int
    expires: float


class SiteEngine(Engine):
    """Trains at sites. A client's number is the index of the site's name in the sorted list of all names."""

    def __init__(self, sites: Membership, header: TaskHeader, batch_size: int) -> None:
        self.sites, self.header, self.batch_size = sites, header, batch_size
        self.grid: Grid = sites.grid
        self.last: dict[int, StageRound] = {}  # the last round of each client that was averaged
        self._current: dict[int, StageRound] = {}
        self._overdue: dict[str, OverdueTask] = {}
        self._stopwatch = Stopwatch()
        self._reasons: dict[str, str] = {}

    @property
    def members(self) -> list[int]:
        """All sites of the federation, connected or not."""
        return list(range(len(self.sites.names)))

    def images_per_epoch(self, client: int) -> int:
        """Images of a site that the optimiser uses in an epoch; 0 while the site is not connected."""
        member = self.sites.members.get(self.sites.names[client])
        samples = member.hello.samples if member else 0
        return samples - samples % max(1, min(self.batch_size, samples))

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Store the last averaged round of each client; the sites store the states themselves."""
        self.last = dict(last)

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Send the tasks to the sites that are connected and idle, and wait for replies until the timeout."""
        self._current = {task.client: StageRound(task.stage, task.round) for task in tasks}
        self._stopwatch.start()
        self._wait_for_sites(tasks)
        self._stopwatch.sending()
        waiting = self._send(tasks)
        sent = {task.client for task in waiting.values()}
        yield from (Unsent(task.client) for task in tasks if task.client not in sent)
        until = time.monotonic() + self.sites.policy.round_timeout
        try:
            while waiting and time.monotonic() < until:
                yield from self._receive(waiting)
                self.sites.update()
                time.sleep(POLL_SECONDS if waiting else 0)
        finally:
            self._give_up(waiting)
            self._stopwatch.stop()

    def commit(self, accepted: Collection[int]) -> None:
        """Make this round the last averaged one of these clients; the next tasks name it as their base."""
        self.last |= {client: self._current[client] for client in accepted}

    def facts(self) -> dict[str, Any]:
        """The names of the sites, how the seconds of the round were spent, and why sites dropped out."""
        names = {str(client): name for client, name in enumerate(self.sites.names)}
        facts: dict[str, Any] = {"sites": names, **self._stopwatch.read()}
        if self._reasons:
            facts["reasons"] = dict(self._reasons)
        self._reasons.clear()
        return facts

    def _wait_for_sites(self, tasks: Sequence[Task]) -> None:
        """Wait until enough sites of these tasks are connected and idle, or the waiting time is over."""
        policy = self.sites.policy
        until, enough = time.monotonic() + policy.wait, min(policy.min_sites, len(tasks))
        while True:
            self.sites.update()
            self._discard_late_replies()
            idle = [task for task in tasks if not self._unavailable(task)]
            if len(idle) >= enough or time.monotonic() >= until:
                return
            time.sleep(POLL_SECONDS)

    def _unavailable(self, task: Task) -> str:
        """Why a task cannot be sent now; empty if it can."""
        if self.sites.names[task.client] not in self.sites.members:
            return "it is not connected."
        if any(overdue.client == task.client for overdue in self._overdue.values()):
            return "it is still busy with an earlier round."
        return ""

    def _send(self, tasks: Sequence[Task]) -> dict[str, Task]:
        """Send the tasks of available sites; returns them by the id of their message."""
        ready = []
        for task in tasks:
            if reason := self._unavailable(task):
                self._drop(task, reason)
            else:
                ready.append(task)
        packed: PackedStates = {}
        sent = self.grid.push_messages([self._message(task, packed) for task in ready]) if ready else []
        waiting = {}
        for task, message in zip(ready, sent, strict=True):
            if message:
                waiting[message] = task
            else:
                self._drop(task, "its task could not be sent.")
        return waiting

    def _message(self, task: Task, packed: PackedStates) -> Message:
        site_task = SiteTask(*self.header, self.last.get(task.client), task)
        node = self.sites.members[self.sites.names[task.client]].node
        ttl = TASK_TIMEOUTS * self.sites.policy.round_timeout
        return Message(pack_task(site_task, packed), node, "train", ttl=ttl)

    def _receive(self, waiting: dict[str, Task]) -> Iterator[Event]:
        for sent in list(waiting):
            for reply in pull_reply(self.grid, sent):
                if (event := self._read(waiting.pop(sent), reply)) is not None:
                    yield event

    def _read(self, task: Task, reply: Message | None) -> Update | Refused | StateLost | None:
        """The event in a reply; None if the site only drops out of the round."""
        if reply is None:
            self._drop(task, "its reply is malformed.")
            return None
        if reply.has_error():
            self._drop(task, ERRORS.get(reply.error.code, "it failed (see its log)."))
            if reply.error.code == CONNECTION_LOST:
                self.sites.remove(self.sites.names[task.client])
            return None
        try:
            answer = unpack_reply(reply.content, task.client)
        except UnreadableError as error:
            return Refused(task.client, str(error))
        if isinstance(answer, Reply):
            self._stopwatch.answered(answer.seconds)
            return answer.update
        self._drop(task, answer.reason)
        if not answer.forgot:
            return None
        self.last.pop(task.client, None)
        return StateLost(task.client)

    def _give_up(self, waiting: Mapping[str, Task]) -> None:
        timeout = self.sites.policy.round_timeout
        expires = time.monotonic() + (TASK_TIMEOUTS - 1) * timeout
        for sent, task in waiting.items():
            self._overdue[sent] = OverdueTask(task.client, expires)
            self._drop(task, f"it did not reply within {timeout:g} seconds.")

    def _discard_late_replies(self) -> None:
        """Discard replies to overdue tasks, and make their sites available for new tasks."""
        for sent, overdue in list(self._overdue.items()):
            if pull_reply(self.grid, sent) or time.monotonic() > overdue.expires:
                del self._overdue[sent]

    def _drop(self, task: Task, reason: str) -> None:
        name = self.sites.names[task.client]
        log.warning("Site %s drops out of %s, round %d: %s", name, task.stage, task.round, reason)
        self._reasons[str(task.client)] = reason


class Stopwatch:
    """Divides the seconds of a round into waiting for sites, transport and training."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("waiting", "transport", "training"), 0.0)
        self._start = self._sending = self._answered = self._worked = 0.0

    def start(self) -> None:
        """Start a round, or another attempt at it."""
        self._start = self._sending = self._answered = time.monotonic()
        self._worked = 0.0

    def sending(self) -> None:
        """End the wait for sites: tasks are sent from now on."""
        self._sending = self._answered = time.monotonic()

    def answered(self, seconds: float) -> None:
        """Record a reply, and the seconds of work that the site measured for it."""
        self._answered, self._worked = time.monotonic(), seconds

    def stop(self) -> None:
        """End the round; the work of the last site that replied counts as training."""
        between = self._answered - self._sending
        training = min(self._worked, between)
        self._sums["waiting"] += self._sending - self._start + time.monotonic() - self._answered
        self._sums["transport"] += between - training
        self._sums["training"] += training

    def read(self) -> dict[str, float]:
        """The seconds since the last call."""
        read, self._sums = self._sums, dict.fromkeys(self._sums, 0.0)
        return read
