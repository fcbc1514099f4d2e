"""The engine: a round of tasks for sites elsewhere, each known by its name."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedmcc.deployment.flower.records import (
    Failure,
    PackedStates,
    Reply,
    UnreadableError,
    pack_task,
    unpack_reply,
)
from fedmcc.deployment.messages import SiteTask
from fedmcc.deployment.server.membership import POLL, Membership, pulled
from fedmcc.federation.engines.base import Engine, Event
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import StageRound, StateLost, Task, Unsent, Update
from fedmcc.methods.base import Stage

log = logging.getLogger(__name__)

LATE = 2  # round timeouts until a task lapses; an answer after the first is ignored, but frees its site
CUT_OFF = 5  # Flower's codes
ERRORS = {3: "its answer was lost.", CUT_OFF: "its connection was lost.", 8: "its process ended."}


class Charter(NamedTuple):
    """What every order of a run says."""

    run: str
    config: str
    fingerprint: str


class Silence(NamedTuple):
    """A task that was not answered in its round."""

    client: int
    until: float  # when it lapses


class SiteEngine(Engine):
    """SiteEngine that take part by name: a client's number is the place of its name among all names."""

    def __init__(self, roster: Membership, charter: Charter, batch_size: int) -> None:
        self.roster, self.charter, self.batch_size = roster, charter, batch_size
        self.grid: Grid = roster.grid
        self.last: dict[int, StageRound] = {}  # rounds of each client that counted
        self._asked: dict[int, StageRound] = {}
        self._silent: dict[str, Silence] = {}
        self._watch = Stopwatch()
        self._reasons: dict[str, str] = {}

    @property
    def members(self) -> list[int]:
        """All sites of the federation, there or not."""
        return list(range(len(self.roster.names)))

    def images_per_epoch(self, client: int) -> int:
        """Images of a site that the optimiser sees in an epoch; 0 while it is not there."""
        member = self.roster.members.get(self.roster.names[client])
        samples = member.hello.samples if member else 0
        return samples - samples % max(1, min(self.batch_size, samples))

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Know which rounds counted: sites look up what they then remembered."""
        self.last = dict(last)

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Send the tasks to the sites that are there and idle, and wait for answers until time is up."""
        self._asked = {task.client: StageRound(task.stage, task.round) for task in tasks}
        self._watch.start()
        self._await(tasks)
        self._watch.sending()
        waiting = self._send(tasks)
        sent = {task.client for task in waiting.values()}
        yield from (Unsent(task.client) for task in tasks if task.client not in sent)
        until = time.monotonic() + self.roster.terms.timeout
        try:
            while waiting and time.monotonic() < until:
                yield from self._receive(waiting)
                self.roster.look()
                time.sleep(POLL if waiting else 0)
        finally:
            self._give_up(waiting)
            self._watch.stop()

    def commit(self, accepted: Collection[int]) -> None:
        """The next orders of these sites name this round as the last that counted."""
        self.last |= {client: self._asked[client] for client in accepted}

    def facts(self) -> dict[str, Any]:
        """Names, where the seconds went, and why sites dropped out."""
        names = {str(client): name for client, name in enumerate(self.roster.names)}
        told: dict[str, Any] = {"sites": names, **self._watch.read()}
        if self._reasons:
            told["reasons"] = dict(self._reasons)
        self._reasons.clear()
        return told

    def _await(self, tasks: Sequence[Task]) -> None:
        """Until enough of those asked are there and idle, or the time to wait is over."""
        terms = self.roster.terms
        until, enough = time.monotonic() + terms.wait, min(terms.least, len(tasks))
        while True:
            self.roster.look()
            self._hear_late()
            idle = [task for task in tasks if not self._trouble(task)]
            if len(idle) >= enough or time.monotonic() >= until:
                return
            time.sleep(POLL)

    def _trouble(self, task: Task) -> str:
        """Why a site cannot be asked now, or nothing."""
        if self.roster.names[task.client] not in self.roster.members:
            return "it is not there."
        if any(silence.client == task.client for silence in self._silent.values()):
            return "it is still busy with an earlier round."
        return ""

    def _send(self, tasks: Sequence[Task]) -> dict[str, Task]:
        ready = []
        for task in tasks:
            if trouble := self._trouble(task):
                self._drop(task, trouble)
            else:
                ready.append(task)
        made: PackedStates = {}
        sent = self.grid.push_messages([self._message(task, made) for task in ready]) if ready else []
        waiting = {}
        for task, name in zip(ready, sent, strict=True):
            if name:
                waiting[name] = task
            else:
                self._drop(task, "its task could not be sent.")
        return waiting

    def _message(self, task: Task, made: PackedStates) -> Message:
        order = SiteTask(*self.charter, self.last.get(task.client), task)
        node = self.roster.members[self.roster.names[task.client]].node
        return Message(pack_task(order, made), node, "train", ttl=LATE * self.roster.terms.timeout)

    def _receive(self, waiting: dict[str, Task]) -> Iterator[Event]:
        for sent in list(waiting):
            for reply in pulled(self.grid, sent):
                if (event := self._read(waiting.pop(sent), reply)) is not None:
                    yield event

    def _read(self, task: Task, reply: Message | None) -> Update | Refused | StateLost | None:
        if reply is not None and reply.has_error():
            self._drop(task, ERRORS.get(reply.error.code, "it failed; its own log says why."))
            if reply.error.code == CUT_OFF:
                self.roster.lose(self.roster.names[task.client])
            return None
        try:
            answer = (
                Failure("its answer is no message.")
                if reply is None
                else unpack_reply(reply.content, task.client)
            )
        except UnreadableError as error:
            return Refused(task.client, str(error))
        if isinstance(answer, Reply):
            self._watch.answered(answer.seconds)
            return answer.update
        self._drop(task, answer.reason)
        if not answer.forgot:
            return None
        self.last.pop(task.client, None)
        return StateLost(task.client)

    def _give_up(self, waiting: Mapping[str, Task]) -> None:
        lapses = time.monotonic() + (LATE - 1) * self.roster.terms.timeout
        for sent, task in waiting.items():
            self._silent[sent] = Silence(task.client, lapses)
            self._drop(task, f"it did not answer within {self.roster.terms.timeout:g} seconds.")

    def _hear_late(self) -> None:
        """An answer that comes late is not used; its site is free for the next task."""
        for sent, silence in list(self._silent.items()):
            if pulled(self.grid, sent) or time.monotonic() > silence.until:
                del self._silent[sent]

    def _drop(self, task: Task, reason: str) -> None:
        name = self.roster.names[task.client]
        log.warning("Site %s drops out of %s, round %d: %s", name, task.stage, task.round, reason)
        self._reasons[str(task.client)] = reason


class Stopwatch:
    """Where the seconds of a round go: waiting for sites, on the way, at work."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("waiting", "transport", "training"), 0.0)
        self._start = self._sending = self._heard = self._worked = 0.0

    def start(self) -> None:
        """A round, or another attempt at it, begins."""
        self._start = self._sending = self._heard = time.monotonic()
        self._worked = 0.0

    def sending(self) -> None:
        """Enough sites are there."""
        self._sending = self._heard = time.monotonic()

    def answered(self, seconds: float) -> None:
        """A site has answered, after so many seconds of work by its own clock."""
        self._heard, self._worked = time.monotonic(), seconds

    def stop(self) -> None:
        """The round is over; the last to answer says how its time was spent."""
        between = self._heard - self._sending
        training = min(self._worked, between)
        self._sums["waiting"] += self._sending - self._start + time.monotonic() - self._heard
        self._sums["transport"] += between - training
        self._sums["training"] += training

    def read(self) -> dict[str, float]:
        """The seconds since it was last read."""
        read, self._sums = self._sums, dict.fromkeys(self._sums, 0.0)
        return read
