"""Which sites are there, by name: newcomers are greeted, and turned away in a sentence if they do not fit."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedmcc.deployment.flower.records import Failure, UnreadableError, pack_greeting, pack_text, unpack_hello
from fedmcc.deployment.messages import Greeting, Hello
from fedmcc.errors import InputError

log = logging.getLogger(__name__)

POLL = 0.1  # seconds between two looks for replies
GREETED_FOR = 300.0  # seconds in which a greeting must be answered


class JoinPolicy(NamedTuple):
    """Whom a server waits for, and how long."""

    names: tuple[str, ...] = ()  # the sites of the federation; none: whoever is there at the start
    least: int = 1  # sites that it needs
    wait: float = 300.0  # seconds for sites to come
    timeout: float = 3600.0  # seconds for a round
    again: float = 60.0  # seconds until a site that was turned away is greeted again
    nodes: tuple[tuple[str, int], ...] = ()  # the node that has each site's key; none: names are believed


class Member(NamedTuple):
    """A site that takes part, and the node that it is to Flower."""

    node: int
    hello: Hello


class Common(NamedTuple):
    """What all sites must have in common."""

    channels: int
    fingerprint: str


class Membership:
    """The sites that are there now."""

    def __init__(self, grid: Grid, greeting: Greeting, terms: JoinPolicy) -> None:
        self.grid, self.greeting, self.terms = grid, greeting, terms
        self.names = tuple(sorted(terms.names))
        self.members: dict[str, Member] = {}
        self.common: Common | None = None
        self._greeted: dict[str, int] = {}  # nodes by the message that greets them
        self._not_before: dict[int, float] = {}  # when a node may be greeted again
        self._next_look = 0.0

    def gather(self) -> None:
        """Wait until all are there, or the time is up and there are enough."""
        until = time.monotonic() + self.terms.wait
        while not self._complete() and time.monotonic() < until:
            self.look()
            time.sleep(POLL)
        self.names = self.names or tuple(sorted(self.members))
        self.refuse_too_few()

    def refuse_too_few(self) -> None:
        """Without enough sites there is no federation."""
        if len(self.members) < self.terms.least:
            missing = [name for name in self.names if name not in self.members]
            raise InputError(
                f"{len(self.members)} sites are there and {self.terms.least} are needed"
                f"{': missing ' + ', '.join(missing) if missing else ''}. Start them, or lower min-sites."
            )

    def agree(self, common: Common) -> None:
        """From now on all sites must have this in common; those that have not are turned away."""
        self.common = common
        for name, member in list(self.members.items()):
            if sentence := self._misfit(member.hello):
                del self.members[name]
                self._turn_away(member.node, sentence)
        self.refuse_too_few()

    def look(self) -> None:
        """See who came and who left, and hear those that were greeted; waits for nobody."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + min(1.0, self.terms.again)
            self._see(set(self.grid.get_node_ids()))
        for node, reply in self._replies():
            self._hear(node, reply)

    def lose(self, name: str) -> None:
        """A site that was cut off has to introduce itself again: Flower may list its node for a while."""
        if (member := self.members.pop(name, None)) is not None:
            log.warning("Site %s is gone.", name)
            self._not_before.pop(member.node, None)

    def usual_channels(self) -> int:
        """The channels of most sites' images; of equals, those of the first name."""
        return Counter(hello.channels for hello in self._hellos()).most_common(1)[0][0]

    def common_size(self) -> int:
        """The size of all sites' images, refused where they differ."""
        sizes = {hello.name: hello.size for hello in self._hellos()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(
                f"The sites' images differ in size ({told} pixels): set views.size in the recipe."
            )
        return next(iter(sizes.values()))

    def _hellos(self) -> list[Hello]:
        return [self.members[name].hello for name in sorted(self.members)]

    def _complete(self) -> bool:
        if self.names:
            return all(name in self.members for name in self.names)
        return len(self.members) >= self.terms.least and not self._greeted

    def _see(self, online: set[int]) -> None:
        for name in [name for name, member in self.members.items() if member.node not in online]:
            self.lose(name)
        now, busy = time.monotonic(), set(self._greeted.values())
        for node in sorted(online - busy):
            if now >= self._not_before.get(node, 0.0):
                self._greet(node)

    def _greet(self, node: int) -> None:
        self._not_before[node] = time.monotonic() + self.terms.again
        (sent,) = self.grid.push_messages(
            [Message(pack_greeting(self.greeting), node, "query.hello", ttl=GREETED_FOR)]
        )
        if sent:
            self._greeted[sent] = node

    def _replies(self) -> Iterator[tuple[int, Message | None]]:
        for sent in list(self._greeted):
            for reply in pulled(self.grid, sent):
                yield self._greeted.pop(sent), reply

    def _hear(self, node: int, reply: Message | None) -> None:
        if reply is None or reply.has_error():
            log.warning("A site could not be greeted: its own log says why.")
            return
        try:
            hello = unpack_hello(reply.content)
        except UnreadableError as error:
            log.warning("A site was turned away: %s", error)
            return
        if isinstance(hello, Failure):
            log.warning("A site cannot take part: %s", hello.reason)
        elif sentence := self._objection(hello, node):
            self._turn_away(node, sentence)
        else:
            self._not_before[node] = float("inf")
            self.members[hello.name] = Member(node, hello)
            log.info("Site %s is there with %d images.", hello.name, hello.samples)

    def _objection(self, hello: Hello, node: int) -> str:
        """Why a site cannot take part, or nothing."""
        present = self.members.get(hello.name)
        if self.names and hello.name not in self.names:
            return f"{hello.name} is no site of this federation: correct the name that it was started with."
        if self.terms.nodes and (hello.name, node) not in self.terms.nodes:
            return f"This node has not the key of site {hello.name}: use the folder that was made for it."
        if present is not None and present.node != node:
            return f"There is a site {hello.name} already: give each site a name of its own."
        if hello.version != version("fedmcc"):
            return (
                f"Site {hello.name} has fedmcc {hello.version} and the server {version('fedmcc')}: "
                "install the same version everywhere."
            )
        return self._misfit(hello)

    def _misfit(self, hello: Hello) -> str:
        if self.common is None:
            return ""
        channels, fingerprint = self.common
        if hello.channels != channels:
            return (
                f"The images of site {hello.name} have {hello.channels} channels and those of the federation "
                f"{channels}: set data.channels in the recipe to what all have."
            )
        if hello.fingerprint != fingerprint:
            return f"Site {hello.name} would train another network: use the same fedmcc and the same recipe."
        return ""

    def _turn_away(self, node: int, sentence: str) -> None:
        """Say why on both sides."""
        log.warning("Turned away: %s", sentence)
        self._not_before[node] = time.monotonic() + self.terms.again
        self.grid.push_messages([Message(pack_text(sentence), node, "query.refused", ttl=GREETED_FOR)])


def pulled(grid: Grid, sent: str) -> list[Message | None]:
    """The reply to a message, if it is there; None for one that is not even a message."""
    try:
        return list(grid.pull_messages([sent]))
    except (ValueError, TypeError, KeyError, AttributeError):  # made so on purpose: Flower's own are sound
        return [None]
