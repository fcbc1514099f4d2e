"""The engine of a federation: sends the tasks of a round to the sites and collects their replies."""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.deployment.flower.records import (
    Failure,
    PackedStates,
    Reply,
    UnreadableError,
    pack_task,
    unpack_reply,
)
from fedmcc.deployment.messages import Hello, SiteTask
from fedmcc.deployment.server.mailbox import Fault, Letter, Mailbox, Received
from fedmcc.deployment.server.membership import POLL_SECONDS, Membership
from fedmcc.deployment.server.patience import Patience
from fedmcc.federation.engines.base import Engine, Event
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import Discarded, StageRound, StateLost, Task, Unsent, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import select, size_in_bytes

log = logging.getLogger(__name__)

TASK_TIMEOUTS = 2  # round timeouts after which a task expires: a reply after the first one is not averaged
MAX_EXTRAS = 64 * 2**20  # bytes that a reply may have besides the shared weights: extras and facts


class TaskHeader(NamedTuple):
    """The part of a `SiteTask` that is the same for all tasks of a run."""

    run: str
    config: str
    fingerprint: str


class OverdueTask(NamedTuple):
    """A task that was not answered in its round; its site gets no other task until it expires."""

    client: int
    stage: str
    asked: float
    expires: float


class SiteEngine(Engine):
    """Trains at sites. A client's number is the index of the site's name in the sorted list of all names."""

    fewest = 1  # sites with which it makes sense to begin a round

    def __init__(self, sites: Membership, header: TaskHeader, batch_size: int) -> None:
        self.sites, self.header, self.batch_size = sites, header, batch_size
        self.mailbox: Mailbox = sites.mailbox
        self.last: dict[int, StageRound] = {}  # the last round of each client that was averaged
        self._current: dict[int, StageRound] = {}
        self._samples: dict[int, int] = {}  # images of each client when its last task was sent
        self._overdue: dict[str, OverdueTask] = {}
        self._stopwatch = Stopwatch()
        self._patience: defaultdict[str, Patience] = defaultdict(Patience)  # by stage, or kind of message
        self._asked = 0.0  # when the tasks of the round were sent
        self._reasons: dict[str, str] = {}
        self._started_with = len(sites.names)

    @property
    def members(self) -> list[int]:
        """All sites of the federation, connected or not."""
        return list(range(len(self.sites.names)))

    def newcomers(self) -> list[int]:
        """Sites that the operator added during the run."""
        self.sites.update()
        return self.members[self._started_with :]

    def images_per_epoch(self, client: int) -> int:
        """Images of a site that the optimiser uses in an epoch; 0 while the site is not connected."""
        member = self.sites.members.get(self.sites.names[client])
        samples = member.hello.samples if member else 0
        return samples - samples % max(1, min(self.batch_size, samples))

    def samples(self, client: int) -> int | None:
        """Number of a site's images according to its hello."""
        return self._samples.get(client)

    def begin(self, folder: Path, files: Mapping[int, Path], last: Mapping[int, StageRound]) -> None:
        """Store the last averaged round of each client; the sites store the states themselves."""
        self.last = dict(last)

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Event]:
        """Send the tasks to the sites that are connected and idle, and wait for their replies.

        In a stage that trains, the server waits a multiple of the time that most sites need.
        """
        self._current = {task.client: StageRound(task.stage, task.round) for task in tasks}
        self._stopwatch.start()
        self._wait_for_sites(tasks)
        self._stopwatch.sending()
        self._asked = time.monotonic()
        waiting = self._send(stage, tasks)
        sent = {task.client for task in waiting.values()}
        yield from (Unsent(task.client) for task in tasks if task.client not in sent)
        try:
            while waiting:
                began, count = time.monotonic(), len(waiting)
                until = self._asked + self._seconds(stage, sent, waiting)
                yield from self._receive(waiting, until)
                self.sites.update()
                if began >= until:
                    break
                if len(waiting) == count:
                    pause(began, until)
        finally:
            self._give_up(waiting)
            self._stopwatch.stop()

    def _seconds(self, stage: Stage, sent: Collection[int], waiting: Mapping[str, Task]) -> float:
        """How long to wait for these sites; simulated ones are slow, but never lost."""
        timeout = self.sites.policy.round_timeout
        if not stage.trained or not self.sites.policy.nodes:
            return timeout
        clients = [task.client for task in waiting.values()]
        return self._patience[stage.name].seconds(sent, clients, timeout)

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
        until, enough = time.monotonic() + policy.wait, min(max(policy.min_sites, self.fewest), len(tasks))
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

    def _send(self, stage: Stage, tasks: Sequence[Task]) -> dict[str, Task]:
        """Send the tasks of available sites; returns them by the id of their message."""
        ready = []
        for task in tasks:
            if reason := self._unavailable(task):
                self._drop(task, reason)
            else:
                ready.append(task)
        packed: PackedStates = {}
        sent = self.mailbox.send([self._letter(stage, task, packed) for task in ready])
        waiting = {}
        for task, message in zip(ready, sent, strict=True):
            if message:
                waiting[message] = task
            else:
                self._drop(task, "its task could not be sent.")
        return waiting

    def _letter(self, stage: Stage, task: Task, packed: PackedStates) -> Letter:
        node, hello = self.sites.members[self.sites.names[task.client]]
        self._samples[task.client] = hello.samples
        seconds = TASK_TIMEOUTS * self.sites.policy.round_timeout
        max_reply = size_in_bytes(select(task.weights, stage.shared)) + MAX_EXTRAS
        return Letter(node, "train", pack_task(self._site_task(task), packed), seconds, max_reply)

    def _site_task(self, task: Task) -> SiteTask:
        return SiteTask(*self.header, self.last.get(task.client), task)

    def _hello(self, task: Task) -> Hello:
        return self.sites.members[self.sites.names[task.client]].hello

    def _receive(self, waiting: dict[str, Task], until: float) -> Iterator[Event]:
        for received in self.mailbox.receive(waiting, until):
            task = waiting.pop(received.sent)
            event = self._read(task, received)
            if event is not None:
                yield event
            if received.size and not isinstance(event, Update):
                yield Discarded(task.client, received.size)

    def _read(self, task: Task, received: Received) -> Update | Refused | StateLost | None:
        """The event in a reply; None if the site only drops out of the round."""
        answer = _unpack(received, task.client)
        if isinstance(answer, Reply):
            self._stopwatch.answered(answer.seconds)
            self._patience[task.stage].answered(task.client, time.monotonic() - self._asked)
            if answer.update.samples != self.samples(task.client):  # its next hello has the new number
                self.sites.remove(self.sites.names[task.client], "changed its images")
            return answer.update
        if isinstance(answer, Fault) and answer.refused:
            return Refused(task.client, answer.reason)
        self._drop(task, answer.reason)
        if isinstance(answer, Fault) and answer.lost:
            self.sites.remove(self.sites.names[task.client])
        if isinstance(answer, Failure) and answer.forgot:
            self.last.pop(task.client, None)
            return StateLost(task.client)
        return None

    def _give_up(self, waiting: Mapping[str, Task]) -> None:
        expires = self._asked + TASK_TIMEOUTS * self.sites.policy.round_timeout
        seconds = time.monotonic() - self._asked
        for sent, task in waiting.items():
            self._overdue[sent] = OverdueTask(task.client, task.stage, self._asked, expires)
            self.mailbox.mark_overdue(sent)
            self._patience[task.stage].gave_up(task.client)
            self._drop(task, f"it did not reply within {seconds:.3g} seconds.")

    def _discard_late_replies(self) -> None:
        """Discard replies to overdue tasks, and make their sites available for new tasks."""
        for received in self.mailbox.receive(self._overdue):
            overdue = self._overdue.pop(received.sent)
            self._patience[overdue.stage].answered(overdue.client, time.monotonic() - overdue.asked)
        for sent, overdue in list(self._overdue.items()):
            if time.monotonic() > overdue.expires:
                self.mailbox.forget(sent)
                del self._overdue[sent]

    def _drop(self, task: Task, reason: str) -> None:
        name = self.sites.names[task.client]
        log.warning("Site %s drops out of %s, round %d: %s", name, task.stage, task.round, reason)
        self._reasons[str(task.client)] = reason


def pause(began: float, until: float) -> None:
    """Wait after requests without a result for as long as they took: a busy server gets fewer of them."""
    now = time.monotonic()
    time.sleep(max(0.0, min(max(POLL_SECONDS, now - began), until - now)))


def _unpack(received: Received, client: int) -> Reply | Failure | Fault:
    """The answer to a task, checked."""
    if isinstance(received.content, Fault):
        return received.content
    try:
        return unpack_reply(received.content, client)
    except UnreadableError as error:
        return Fault(str(error), refused=True)
    except Exception as error:  # nothing that a site sends ends the run
        log.warning("A reply caused a %s.", type(error).__name__)
        return Fault("Its reply is malformed.", refused=True)


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
