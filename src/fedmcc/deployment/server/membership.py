"""Tracks which sites are connected: greets new ones, and rejects those that do not match the federation."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

from fedmcc.deployment.flower.records import Failure, UnreadableError, pack_greeting, pack_text, unpack_hello
from fedmcc.deployment.messages import Greeting, Hello
from fedmcc.deployment.server.mailbox import Fault, Letter, Mailbox, Received
from fedmcc.deployment.server.request import JoinPolicy
from fedmcc.errors import InputError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # between two checks for replies
NODE_LIST_SECONDS = 1.0  # between two requests for the list of connected nodes, at most
GREETING_SECONDS = 300.0  # in which a site must answer a greeting
MAX_HELLO = 100_000  # bytes


class Member(NamedTuple):
    """A connected site and its node id in Flower."""

    node: int
    hello: Hello


class Requirements(NamedTuple):
    """Properties that all sites must share."""

    channels: int
    fingerprint: str
    size: int | None = None  # pixels of the images' shorter side; None: any


class Membership:
    """The sites that are connected now, by name."""

    def __init__(self, mailbox: Mailbox, greeting: Greeting, policy: JoinPolicy) -> None:
        self.mailbox, self.greeting, self.policy = mailbox, greeting, policy
        self.names = tuple(policy.names)
        self.on_new_names: Callable[[tuple[str, ...]], None] = lambda names: None
        self.members: dict[str, Member] = {}
        self.requirements: Requirements | None = None
        self._greeted: dict[str, int] = {}  # the node of each greeting that is not answered yet
        self._greet_after: dict[int, float] = {}  # when each node may be greeted again
        self._next_node_list = 0.0

    def gather(self) -> None:
        """Wait until all sites are connected or the time is up; raises InputError if there are too few."""
        until = time.monotonic() + self.policy.wait
        while not self._complete() and time.monotonic() < until:
            self.update()
            time.sleep(POLL_SECONDS)
        self.names = self.names or tuple(sorted(self.members))
        self._check_count()

    def require(self, requirements: Requirements) -> None:
        """Reject present and future sites without these properties; raises InputError if too few remain."""
        self.requirements = requirements
        for name, member in list(self.members.items()):
            if reason := self._mismatch(member.hello):
                del self.members[name]
                self._reject(member.node, reason)
        self._check_count()

    def update(self) -> None:
        """Greet new nodes, remove disconnected ones and read replies that have arrived, without waiting."""
        if time.monotonic() >= self._next_node_list:
            self._next_node_list = time.monotonic() + min(NODE_LIST_SECONDS, self.policy.retry_seconds)
            self._admit(self.mailbox.registered())
            self._update_nodes(self.mailbox.nodes())
        for received in self.mailbox.receive(self._greeted):
            del self._greeted[received.sent]
            self._receive(received)

    def remove(self, name: str, reason: str = "disconnected") -> None:
        """Remove a site that lost its connection; it is greeted again even if Flower still lists its node."""
        if (member := self.members.pop(name, None)) is not None:
            log.warning("Site %s %s.", name, reason)
            self._greet_after.pop(member.node, None)

    def majority_channels(self) -> int:
        """The number of channels that most sites have; on a tie, that of the site whose name sorts first."""
        return Counter(hello.channels for hello in self._hellos()).most_common(1)[0][0]

    def majority_size(self) -> int:
        """The image size of more than half of the sites; raises InputError if there is none."""
        sizes = {hello.name: hello.size for hello in self._hellos()}
        size, count = Counter(sizes.values()).most_common(1)[0]
        if 2 * count <= len(sizes):
            listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(
                f"The sites' images differ in size ({listed} pixels): set views.size in the recipe."
            )
        return size

    def _hellos(self) -> list[Hello]:
        return [self.members[name].hello for name in sorted(self.members)]

    def _complete(self) -> bool:
        if self.names:
            known = {name for name, _ in self.policy.nodes} or set(self.names)  # others were revoked
            return all(name in self.members for name in self.names if name in known)
        return len(self.members) >= self.policy.min_sites and not self._greeted

    def _check_count(self) -> None:
        if len(self.members) < self.policy.min_sites:
            missing = [name for name in self.names if name not in self.members]
            raise InputError(
                f"{len(self.members)} sites are connected, but {self.policy.min_sites} are needed"
                f"{': missing ' + ', '.join(missing) if missing else ''}. Start them, or lower min-sites."
            )

    def _admit(self, registered: dict[str, int]) -> None:
        """Add sites that the operator added; the numbers of the others stay, so that new ones come last."""
        if not self.names or not self.policy.nodes or registered.items() <= set(self.policy.nodes):
            return
        self.policy = self.policy._replace(nodes=tuple(registered.items()))
        new = tuple(sorted(registered.keys() - set(self.names)))
        if new:
            log.info("Added to the federation: %s.", ", ".join(new))
            self.names += new
            self.on_new_names(self.names)

    def _update_nodes(self, online: set[int]) -> None:
        for name in [name for name, member in self.members.items() if member.node not in online]:
            self.remove(name)
        now, pending = time.monotonic(), set(self._greeted.values())
        for node in sorted(online - pending):
            if now >= self._greet_after.get(node, 0.0):
                self._greet(node)

    def _greet(self, node: int) -> None:
        self._greet_after[node] = time.monotonic() + self.policy.retry_seconds
        letter = Letter(node, "query.hello", pack_greeting(self.greeting), GREETING_SECONDS, MAX_HELLO)
        (sent,) = self.mailbox.send([letter])
        if sent:
            self._greeted[sent] = node

    def _receive(self, received: Received) -> None:
        node, hello = received.node, _read(received)
        if isinstance(hello, Fault):
            verb = "Rejected a site" if hello.refused else "A site failed to answer the greeting"
            log.warning("%s: %s", verb, hello.reason)
        elif isinstance(hello, Failure):
            log.warning("%s cannot join: %s", self._site_of(node), hello.reason)
        elif reason := self._objection(hello, node):
            self._reject(node, reason)
        else:
            self._greet_after[node] = float("inf")
            self.members[hello.name] = Member(node, hello)
            log.info("Site %s joined with %d images.", hello.name, hello.samples)

    def _site_of(self, node: int) -> str:
        """The site with the key of this node, for logs."""
        return next((f"Site {name}" for name, known in self.policy.nodes if known == node), "A site")

    def _objection(self, hello: Hello, node: int) -> str:
        """Why a site cannot join; empty if it can."""
        present = self.members.get(hello.name)
        if self.names and hello.name not in self.names:
            return f"The federation has no site {hello.name}: correct the name of this site."
        if self.policy.nodes and (hello.name, node) not in self.policy.nodes:
            return f"This node does not have the key of site {hello.name}: use the folder of that site."
        if present is not None and present.node != node:
            return f"A site {hello.name} is connected already: give each site its own name."
        if release(hello.version) != release(version("fedmcc")):
            return (
                f"Site {hello.name} has fedmcc {hello.version} and the server {version('fedmcc')}: "
                "install the same version everywhere; only the last number may differ."
            )
        return self._mismatch(hello)

    def _mismatch(self, hello: Hello) -> str:
        """Which requirement a site does not meet; empty if it meets all."""
        if self.requirements is None:
            return ""
        channels, fingerprint, size = self.requirements
        if hello.channels != channels:
            return (
                f"The images of site {hello.name} have {hello.channels} channels, but the federation uses "
                f"{channels}: set data.channels in the recipe."
            )
        if size is not None and hello.size != size:
            return (
                f"The images of site {hello.name} have {hello.size} pixels, but those of most sites "
                f"{size}: set views.size in the recipe."
            )
        if hello.fingerprint != fingerprint:
            return f"Site {hello.name} would train a different network: install the same fedmcc everywhere."
        return ""

    def _reject(self, node: int, reason: str) -> None:
        """Log the reason, and send it to the site."""
        log.warning("Rejected: %s", reason)
        self._greet_after[node] = time.monotonic() + self.policy.retry_seconds
        letter = Letter(node, "query.refused", pack_text(reason), GREETING_SECONDS, MAX_HELLO)
        for sent in self.mailbox.send([letter]):
            self.mailbox.forget(sent)  # nobody waits for the reply


def release(text: str) -> tuple[str, ...]:
    """The part of a version that server and sites must share: all but the patch number."""
    return tuple(text.split(".")[:2])


def _read(received: Received) -> Hello | Failure | Fault:
    """The answer to a greeting, checked."""
    if isinstance(received.content, Fault):
        return received.content
    try:
        return unpack_hello(received.content)
    except UnreadableError as error:
        return Fault(str(error), refused=True)
    except Exception as error:  # nothing that a site sends ends the run
        log.warning("A hello caused a %s.", type(error).__name__)
        return Fault("Its hello is malformed.", refused=True)
