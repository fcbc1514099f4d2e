"""Messages between the server and its sites: the only place that sends and receives through Flower.

A reply counts only if it comes from the node that the message was sent to, answers that message, belongs to
this run and is signed by the site. Whatever a site sends is a fault of that site; nothing waits for a site.
"""

import logging
import math
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedmcc.deployment.flower.deliveries import (
    Claims,
    Delivery,
    FailedRequestError,
    RefusedDeliveryError,
    claims_of,
    link_of,
)
from fedmcc.deployment.flower.signatures import ForgedError, Order
from fedmcc.deployment.server.signer import Signer

log = logging.getLogger(__name__)

DOWNLOAD_SECONDS = 1.0  # that one call of `receive` downloads a reply, at most: other replies come next
NOTICE_SECONDS = 60.0  # between two log lines about ignored messages
CONNECTION_LOST = 5  # error codes of Flower
ERRORS = {3: "its reply was lost.", CONNECTION_LOST: "its connection was lost.", 8: "its process ended."}


class Letter(NamedTuple):
    """A message to a node."""

    node: int
    kind: str  # Flower's message type, which selects the function at the site
    content: RecordDict
    seconds: float  # until it expires
    max_reply: int  # bytes


class Fault(NamedTuple):
    """Why a message has no reply that can be used."""

    reason: str
    refused: bool = False  # the site sent something that is not accepted
    lost: bool = False  # the connection to the site was lost


class Received(NamedTuple):
    """The outcome of a message: the content of the reply, or a fault."""

    sent: str  # the id of the message
    node: int
    content: RecordDict | Fault
    size: int = 0  # bytes that were downloaded


@dataclass
class Pending:
    """A message that was sent and has no outcome yet."""

    letter: Letter
    run: int
    order: Order | None  # what was signed; None in a simulation
    key: bytes = b""  # of the site, as it was registered then
    delivery: Delivery | None = None  # its reply, once it is announced
    overdue: bool = False


class Mailbox:
    """Sends messages to nodes and receives their replies; without a signer, the nodes are simulated."""

    def __init__(self, grid: Grid, signer: Signer | None = None) -> None:
        self._grid, self._link, self._signer = grid, link_of(grid), signer
        self._pending: dict[str, Pending] = {}
        self._separate: set[int] = set()  # nodes whose replies are requested one by one
        self._ignored, self._next_notice = 0, 0.0

    def nodes(self) -> set[int]:
        """The nodes that are connected, and whose keys are not revoked."""
        nodes = set(self._grid.get_node_ids())
        return nodes & self._signer.nodes if self._signer else nodes

    def registered(self) -> dict[str, int]:
        """The node of each site that the operator has registered so far; empty in a simulation."""
        return self._signer.registered() if self._signer else {}

    def registered_key(self, site: str) -> bytes:
        """The public key of a site; empty in a simulation, whose sites have none."""
        return self._signer.registered_key(site) if self._signer else b""

    def send(self, letters: Sequence[Letter]) -> list[str]:
        """Send messages; returns the id of each, empty if it could not be sent."""
        if not letters:
            return []
        try:
            return self._push(letters)
        except (ObjectPushError, httpx.HTTPStatusError):  # a node can end the upload that all of them share
            log.warning("Flower's server did not accept the messages of a round: they are sent one by one.")
            return [self._push_one(letter) for letter in letters]

    def receive(self, sent: Collection[str], until: float = math.inf) -> list[Received]:
        """The outcomes of these messages that are known by now, without waiting; downloads end at `until`."""
        self._collect([id for id in sent if self._pending[id].delivery is None])
        outcomes = [self._outcome(id, min(until, time.monotonic() + DOWNLOAD_SECONDS)) for id in sent]
        received = [outcome for outcome in outcomes if outcome is not None]
        for outcome in received:
            order = self._pending.pop(outcome.sent).order
            if self._signer and order and isinstance(outcome.content, Fault):
                self._signer.record_fault(order, outcome.content.reason)
        return received

    def mark_overdue(self, sent: str) -> None:
        """Do not download the reply to this message: `receive` reports only that it has arrived."""
        self._pending[sent].overdue = True

    def forget(self, sent: str) -> None:
        """Ignore a message from now on, and delete a reply that is announced."""
        pending = self._pending.pop(sent, None)
        if pending is not None and pending.delivery is not None:
            pending.delivery.discard()

    def _push(self, letters: Sequence[Letter]) -> list[str]:
        messages = [
            # The id of a message is a hash: with a random group, no other site can guess it and answer.
            Message(
                letter.content,
                letter.node,
                letter.kind,
                ttl=letter.seconds,
                group_id=secrets.token_hex(16),
            )
            for letter in letters
        ]
        orders = self._signer.sign(messages) if self._signer else [None] * len(messages)
        keys = [self.registered_key(order.site) if order else b"" for order in orders]
        for message in messages:
            message.content = self._link.wrapped(message.content)
        ids = [id or "" for id in self._grid.push_messages(messages)]
        if len(ids) != len(letters):  # Flower returns fewer if it sent none
            return [""] * len(letters)
        for id, letter, message, order, key in zip(ids, letters, messages, orders, keys, strict=True):
            if id:
                self._pending[id] = Pending(letter, message.metadata.run_id, order, key)
        return ids

    def _push_one(self, letter: Letter) -> str:
        try:
            return self._push([letter])[0]
        except (ObjectPushError, httpx.HTTPStatusError):
            return ""

    def _collect(self, sent: Sequence[str]) -> None:
        """Request announced replies, in one request; nodes whose request failed before have their own.

        The first request is for no reply: it clears messages that sites have addressed to the server without
        being asked.
        """
        separate = [id for id in sent if self._pending[id].letter.node in self._separate]
        together = [id for id in sent if id not in separate]
        for ids in ([], together, *([id] for id in separate)) if sent else ():
            try:
                deliveries = self._link.announced(ids)
            except FailedRequestError as error:  # Flower's server has lost the replies
                log.warning("Flower's server failed to read the replies of %d sites: %s.", len(ids), error)
                self._separate |= {self._pending[id].letter.node for id in ids}
            else:
                for delivery in deliveries:
                    self._assign(delivery)

    def _assign(self, delivery: Delivery) -> None:
        pending = self._pending.get(delivery.claims.answers)
        if pending is not None and pending.delivery is None and _answers(pending, delivery.claims):
            pending.delivery = delivery
            return
        delivery.discard()
        self._ignored += 1
        if time.monotonic() >= self._next_notice:
            log.warning("Ignored %d messages that do not answer a message to their sender.", self._ignored)
            self._ignored, self._next_notice = 0, time.monotonic() + NOTICE_SECONDS

    def _outcome(self, id: str, until: float) -> Received | None:
        """The outcome of a message; None if it is not known yet."""
        pending = self._pending[id]
        node, delivery = pending.letter.node, pending.delivery
        if invalid := self._key_fault(pending):
            return Received(id, node, invalid)
        if delivery is None:
            return None
        try:
            if pending.overdue:
                return Received(id, node, self._late(delivery)) if delivery.arrived() else None
            reply = delivery.download(pending.letter.max_reply, until)
            content = self._read(pending, reply) if reply is not None else None
        except RefusedDeliveryError as error:
            delivery.discard()
            content = Fault(str(error), refused=True)
        return None if content is None else Received(id, node, content, delivery.size)

    def _key_fault(self, pending: Pending) -> Fault | None:
        """The fault of a site whose key was revoked or replaced since the message was sent."""
        key = self.registered_key(pending.order.site) if pending.order else b""
        if not pending.order or (key and key == pending.key):
            return None
        change = "replaced" if key else "revoked"
        if pending.delivery is None:
            return Fault(f"its key was {change}.", lost=True)
        pending.delivery.discard()
        return Fault(f"The key of site {pending.order.site} was {change}.", refused=True)

    def _late(self, delivery: Delivery) -> Fault:
        delivery.discard()
        return Fault("it replied too late.")

    def _read(self, pending: Pending, reply: Message) -> RecordDict | Fault:
        try:
            return self._checked(pending, reply)
        except (RefusedDeliveryError, ForgedError) as error:
            return Fault(str(error), refused=True)
        except Exception as error:  # nothing that a site sends ends the run
            log.warning("A reply caused a %s.", type(error).__name__)
            return Fault("Its reply is malformed.", refused=True)

    def _checked(self, pending: Pending, reply: Message) -> RecordDict | Fault:
        """The content of a reply that was written for this message by its receiver."""
        claims = claims_of(reply)  # the site wrote them into its reply, besides those that Flower checked
        if self._pending.get(claims.answers) is not pending:
            raise RefusedDeliveryError("Its reply answers another message.")
        if not _answers(pending, claims):
            raise RefusedDeliveryError("Its reply names another sender.")
        if reply.has_error():
            code = reply.error.code
            reason = ERRORS.get(code, "it failed (see its log).")
            return Fault(reason, lost=code == CONNECTION_LOST)
        if claims.node == SUPERLINK_NODE_ID:
            raise RefusedDeliveryError("Its reply names another sender.")
        if self._signer and pending.order:
            self._signer.verify(reply, pending.order)
        return reply.content


def _answers(pending: Pending, claims: Claims) -> bool:
    """Whether a reply comes from the node that got the message, or is an error of Flower's server."""
    return claims.run == pending.run and claims.node in (pending.letter.node, SUPERLINK_NODE_ID)
