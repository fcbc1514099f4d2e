"""Replies of sites on their way through Flower's server: announced first, then downloaded without waiting.

`Grid.pull_messages` waits until all objects of all replies are uploaded, downloads whatever a site announces,
and takes the sender from the content. Here each reply is downloaded separately, from the message inwards.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

import httpx
from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from fedmcc.deployment.flower import packets
from fedmcc.deployment.flower.records import RECORD_NAMES

log = logging.getLogger(__name__)

CHUNK_BYTES = 5 * 2**20  # in which Flower sends arrays
MAX_SMALL_OBJECTS = 64  # of a reply, besides the chunks of its arrays
MAX_SMALL_BYTES = 1_000_000  # of an object that is not a chunk
FIRST_PAUSE, MAX_PAUSE = 0.1, 1.0  # seconds between two requests for an object that is not uploaded yet
CHILDREN = {  # the types of objects that an object may consist of
    "Message": ("RecordDict",),
    "RecordDict": ("ArrayRecord", "ConfigRecord"),
    "ArrayRecord": ("Array",),
    "Array": ("ArrayChunk",),
}


class RefusedDeliveryError(Exception):
    """A reply is not accepted; the message is a sentence for logs and metrics."""


class FailedRequestError(Exception):
    """Flower's server failed to answer a request, which objects of a manipulated reply can cause."""


class Claims(NamedTuple):
    """What a reply claims about itself: its run, its sender, and the message that it answers."""

    run: int
    node: int
    answers: str


class SuperLink:
    """Flower's server, asked for single objects."""

    def __init__(self, grid: HttpGrid) -> None:
        self._node, self._run = grid.node, grid.run.run_id
        self._client = grid._runtime_client  # private, but the only way to ask without waiting

    def wrapped(self, content: RecordDict) -> RecordDict:
        """The content of a message as it is sent."""
        return packets.pack(content)

    def announced(self, sent: Collection[str]) -> "list[Download]":
        """Messages that arrived since the last call, as Flower's server has checked them."""
        answer = _ask(self._client.PullMessages, PullAppMessagesRequest(message_ids=sent))
        return [
            Download(
                self, Claims(about.run_id, about.src_node_id, about.reply_to_message_id), about.message_id
            )
            for about in (message.metadata for message in answer.messages_list)
        ]

    def pull(self, id: str) -> bytes | None:
        """The content of an object; None if it is not uploaded yet."""
        request = PullObjectRequest(node=self._node, run_id=self._run, object_id=id)
        answer = _ask(self._client.PullObject, request)
        if not answer.object_found:
            raise RefusedDeliveryError("Its reply is incomplete.")
        return bytes(answer.object_content) if answer.object_available else None

    def confirm(self, id: str) -> None:
        """Delete a message and its objects."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run, message_object_id=id)
        _ask(self._client.ConfirmMessageReceived, request)


class Download:
    """The download of a reply, object by object from the message inwards.

    Sites upload the message last. Everything that can be refused is, before the arrays are downloaded.
    """

    def __init__(self, server: SuperLink, claims: Claims, id: str) -> None:
        self.claims, self.size = claims, 0
        self._server, self._id = server, id
        self._missing: deque[tuple[str, Collection[str]]] = deque([(id, ("Message",))])
        self._contents: dict[str, bytes] = {}
        self._next_request, self._pause = 0.0, FIRST_PAUSE

    def arrived(self) -> bool:
        """Whether the site has uploaded the message, which it does last."""
        return bool(self._contents) or self._pull_next(CHUNK_BYTES)

    def download(self, limit: int, until: float) -> Message | None:
        """The reply; None if objects are missing at the time `until`."""
        while self._missing:
            if time.monotonic() >= until or not self._pull_next(limit):
                return None
        self.discard()  # at Flower's server; it is complete here
        return self._inflated(limit)

    def discard(self) -> None:
        """Delete the reply at Flower's server; a reply that cannot be deleted is left there."""
        try:
            self._server.confirm(self._id)
        except FailedRequestError:
            log.warning("Flower's server could not delete a reply.")

    def _pull_next(self, limit: int) -> bool:
        """Request the next object; returns False if it is not uploaded yet."""
        if time.monotonic() < self._next_request:
            return False
        id, types = self._missing[0]
        try:
            content = self._server.pull(id)
        except FailedRequestError:
            raise RefusedDeliveryError("Its reply is malformed.") from None
        if content is None:
            self._next_request = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
            return False
        self._pause = FIRST_PAUSE
        self._missing.popleft()
        self._add(id, content, types, limit)
        return True

    def _add(self, id: str, content: bytes, types: Collection[str], limit: int) -> None:
        self.size += len(content)
        if self.size > limit:
            raise RefusedDeliveryError(f"Its reply is larger than {limit:,} bytes.")
        kind, children = _head(content)
        if kind not in types or (kind != "ArrayChunk" and len(content) > MAX_SMALL_BYTES):
            raise RefusedDeliveryError("Its reply is malformed.")
        if kind == "RecordDict":
            _check_names(content)
        self._contents[id] = content
        known = {*self._contents, *(missing for missing, _ in self._missing)}
        new = [child for child in dict.fromkeys(children) if child not in known]
        if len(known) + len(new) > MAX_SMALL_OBJECTS + limit // CHUNK_BYTES:
            raise RefusedDeliveryError(f"Its reply is larger than {limit:,} bytes.")
        self._missing.extend((child, CHILDREN.get(kind, ())) for child in new)

    def _inflated(self, limit: int) -> Message:
        contents, self._contents = self._contents, {}
        try:
            if sum(_array_bytes(content, contents) for content in contents.values()) > limit:
                raise RefusedDeliveryError(f"Its reply is larger than {limit:,} bytes.")
            message = cast(Message, inflate_object_from_contents(self._id, contents))
            if message.has_content():
                message.content = packets.unpack(message.content)
        except RefusedDeliveryError:
            raise
        except Exception:  # Flower parses what the site sent, and raises whatever that leads to
            raise RefusedDeliveryError("Its reply is malformed.") from None
        return message


class LocalLink:
    """A grid inside this process: simulations and tests."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def wrapped(self, content: RecordDict) -> RecordDict:
        """The content as it is: nothing is sent."""
        return content

    def announced(self, sent: Collection[str]) -> "list[LocalDelivery]":
        """Messages that arrived since the last call."""
        return [LocalDelivery(message) for message in self._grid.pull_messages(sent)] if sent else []


class LocalDelivery:
    """A complete reply."""

    def __init__(self, message: Message) -> None:
        self.claims, self.size, self._message = claims_of(message), 0, message

    def arrived(self) -> bool:
        """Whether the reply has arrived: always."""
        return True

    def download(self, limit: int, until: float) -> Message | None:
        """The reply, which is in memory: its size does not matter."""
        return self._message

    def discard(self) -> None:
        """Nothing is stored elsewhere."""


Delivery = Download | LocalDelivery
Link = SuperLink | LocalLink


def link_of(grid: Grid) -> Link:
    """The link through Flower's server, or for a grid inside this process through the grid itself."""
    return SuperLink(grid) if isinstance(grid, HttpGrid) else LocalLink(grid)


def _ask(method: Callable[[Any], Any], request: Any) -> Any:
    try:
        return method(request)
    except httpx.HTTPStatusError as error:
        raise FailedRequestError(f"status {error.response.status_code}") from None


def claims_of(message: Message) -> Claims:
    """What a message claims about itself."""
    about = message.metadata
    return Claims(about.run_id, about.src_node_id, about.reply_to_message_id)


def _head(content: bytes) -> tuple[str, list[str]]:
    """The type of an object and the ids of the objects that it consists of."""
    try:
        kind, children, _ = get_object_head_values_from_object_content(content)
    except ValueError:
        raise RefusedDeliveryError("Its reply is malformed.") from None
    return kind, children


def _check_names(content: bytes) -> None:
    try:
        names = set(json.loads(_body(content)))
    except (ValueError, TypeError, RecursionError):
        raise RefusedDeliveryError("Its reply is malformed.") from None
    if not names <= RECORD_NAMES:
        raise RefusedDeliveryError("Its reply has records that do not belong to a reply.")


def _array_bytes(content: bytes, contents: dict[str, bytes]) -> int:
    """The bytes of an array, whose chunks may repeat; 0 for other objects."""
    kind, chunks = _head(content)
    if kind != "Array":
        return 0
    return sum(len(contents[chunks[index]]) for index in json.loads(_body(content))["arraychunk_ids"])


def _body(content: bytes) -> Any:
    kind, _ = _head(content)
    return get_object_body(content, inflatable_class_registry[kind])
