"""A site that speaks Flower's fleet interface itself: it can send whatever a holder of its key can send.

`connect` uses HTTPS and the key in a site's folder, `Sites` are several of them that answer when they are
told to; `InProcess` is Flower's server without HTTP.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmcc.deployment.flower.packets import unpack
from fedmcc.deployment.flower.signatures import Order, sign_reply
from fedmcc.deployment.setup.certificates import load_site_key
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.deployment.site.app import client_app

START_SECONDS = 180.0  # for slow machines
HEARTBEAT_SECONDS = 600.0  # longer than a test


@dataclass
class FleetSite:
    """A node, and the client through which it talks to Flower's server."""

    client: Any
    node: int

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def heartbeat(self) -> None:
        """Tell Flower's server that this node is alive."""
        request = SendNodeHeartbeatRequest(node=Node(node_id=self.node), heartbeat_interval=HEARTBEAT_SECONDS)
        self.client.SendNodeHeartbeat(request)

    def pull(self) -> Message | None:
        """The next message to this node with its content, if there is one."""
        answer = self.client.PullMessages(PullMessagesRequest(node=Node(node_id=self.node)))
        if not answer.messages_list:
            return None
        about = message_from_proto(answer.messages_list[0]).metadata
        ids = [tree.object_id for tree in iterate_object_tree(answer.message_object_trees[0])]
        contents = {id: self._pull_object(about.run_id, id) for id in ids}
        node = Node(node_id=self.node)
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=about.run_id, message_object_id=about.message_id)
        )
        message = inflate_object_from_contents(about.message_id, contents)
        message.metadata.__dict__["_message_id"] = about.message_id
        return message

    def reply(self, message: Message, content: RecordDict) -> list[str]:
        """Answer a message honestly; returns the ids of the objects."""
        return self.push(Message(content, reply_to=message))

    def push(
        self, message: Message, *, upload: bool = True, envelope: Message | None = None, pause: float = 0.0
    ) -> list[str]:
        """Send a message as it is, whatever its metadata claim.

        Without `upload` its objects are announced and never sent. With `envelope` Flower's server gets other
        metadata than the message contains. A slow link pauses before each object, for seconds.
        """
        id = message.object_id
        envelope = envelope or message
        envelope.metadata.__dict__["_message_id"] = id
        contents = {id: item.deflate() for id, item in get_all_nested_objects(message).items()}
        return self.push_objects(envelope, get_object_tree(message), contents if upload else {}, pause)

    def push_objects(
        self, envelope: Message, tree: ObjectTree, contents: Mapping[str, bytes], pause: float = 0.0
    ) -> list[str]:
        """Announce a message with a tree of objects, and send these contents of them."""
        request = PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[message_to_proto(remove_content_from_message(envelope))],
            message_object_trees=[tree],
        )
        answer = self.client.PushMessages(request)
        run = envelope.metadata.run_id
        for id, content in contents.items():
            time.sleep(pause)
            about = {"node": Node(node_id=self.node), "run_id": run, "session_id": answer.session_id}
            self.client.PushObject(PushObjectRequest(object_id=id, object_content=content, **about))
        return [node.object_id for node in iterate_object_tree(tree)]

    def _pull_object(self, run: int, id: str) -> bytes:
        """The content of an object, which Flower's server may receive a little later than its message."""
        request = PullObjectRequest(node=Node(node_id=self.node), run_id=run, object_id=id)
        for _ in range(1000):
            if (answer := self.client.PullObject(request)).object_available:
                return bytes(answer.object_content)
            time.sleep(0.5)  # Flower's own client waits for a second
        raise TimeoutError(id)


def forged(message: Message, **metadata: Any) -> Message:
    """The message with other metadata, such as `src_node_id`."""
    content = message.content if message.has_content() else None
    copy = make_message(metadata=message_from_proto(message_to_proto(message)).metadata, content=content)
    for key, value in metadata.items():
        copy.metadata.__dict__[f"_{key}"] = value
    return copy


def connect(address: str, authority: Path, key: Path, node: int | None = None) -> FleetSite:
    """Activate the node of a site with the key in its folder; with `node`, a site that is active already."""
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, private.public_key()),
    ]
    client = FleetHttpClient.from_server_address(address, False, authority.read_bytes(), interceptors)
    if node is not None:
        return FleetSite(client, node)
    public = public_key_to_bytes(private.public_key())
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_SECONDS)
    try:
        return FleetSite(client, client.ActivateNode(request).node_id)
    except httpx.HTTPStatusError:
        client.close()
        raise


class Sites:
    """Sites that answer when a test tells them to; at first a, b and c."""

    def __init__(self, operator: OperatorFolder, images: Path) -> None:
        self.operator, self.images = operator, images
        self.nodes: dict[str, Any] = {}
        self.own: dict[str, dict[str, str]] = {}
        for name in "abc":
            self.connect(name)

    def connect(self, name: str) -> None:
        """Connect a site; those beyond c have the images of a."""
        folder, images = self.operator.site(name), self.images / name
        address, authority = self.operator.read_spec().address, self.operator.authority_certificate
        self.nodes[name] = connect(address, authority, folder.key)
        self.own[name] = {
            "client": name,
            "folder": str(folder.path),
            "state-dir": str(folder.path / "state"),
            "data": str(images if images.exists() else self.images / "a"),
        }

    def close(self) -> None:
        """Close all connections."""
        for site in self.nodes.values():
            site.close()

    def pull(self, name: str) -> Message:
        """Wait for the next message to a site."""
        return self._wait_for({name})[name]

    def tasks(self, names: str) -> dict[str, Message]:
        """Wait for the next tasks of these sites; greetings before them are answered."""
        return self._wait_for(set(names), greetings=False)

    def _wait_for(self, names: set[str], greetings: bool = True) -> dict[str, Message]:
        until, found = time.monotonic() + START_SECONDS, {}
        while time.monotonic() < until and found.keys() < names:
            for name in sorted(names - found.keys()):
                message = self.nodes[name].pull()
                if message is None:
                    time.sleep(0.1)
                elif greetings or message.metadata.message_type == "train":
                    found[name] = message
                else:
                    self.nodes[name].push(self.reply(name, message))
        assert found.keys() == names
        return found

    def reply(self, name: str, message: Message) -> Message:
        """The honest reply of a site."""
        context = Context(message.metadata.run_id, self.nodes[name].node, self.own[name], RecordDict(), {})
        return client_app(message, context)

    def answer(self, tasks: dict[str, Message], names: str) -> None:
        """Send the honest updates of these sites."""
        for name in names:
            self.nodes[name].push(self.reply(name, tasks[name]))

    def lie(self, name: str, message: Message, change: Callable[[RecordDict], object]) -> None:
        """Send the reply of a site after a change, signed again."""
        content = unpack(self.reply(name, message).content)
        change(content)
        facts = unpack(message.content)["signature"]
        order = Order(*(facts[key] for key in Order._fields))
        sign_reply(content, order, load_site_key(Path(self.own[name]["folder"]) / "site.key"))
        self.nodes[name].reply(message, content)


class InProcess:
    """Flower's server with its real state and request handlers, but without HTTP; its run is number `run`."""

    def __init__(self) -> None:
        federation = NoOpFederationManager()
        self.state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, federation, ObjectStoreFactory()).state()
        self.run = self.state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        self.state.claim_task(task)
        self.state.activate_task(task)
        self.task = Task(task_id=task, run_id=self.run)

    def grid(self) -> HttpGrid:
        """The grid of the server's process."""
        grid = HttpGrid(token="unused")
        grid.set_run(self.state.get_run_info(run_ids=[self.run])[0])
        grid._client = _Handlers(runtime_handlers, self.state, self.task)
        return grid

    def site(self) -> FleetSite:
        """A new connected site."""
        node = self.state.create_node("owner", "owner", str(len(self.state.nodes)).encode(), 0)
        self.state.activate_node(node, HEARTBEAT_SECONDS)
        return FleetSite(_Handlers(fleet_handlers, self.state), node)


class _Handlers:
    """Calls Flower's functions for requests by the names that its HTTP clients have for them."""

    def __init__(self, module: Any, *more: Any) -> None:
        self.module, self.more = module, more

    def __getattr__(self, name: str) -> Any:
        words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        function = getattr(self.module, words[1:])
        takes_store = "store" in function.__annotations__
        more = (*self.more, self.more[0].object_store) if takes_store else self.more
        return lambda request: _answered(function, request, *more)


def _answered(function: Any, *arguments: Any) -> Any:
    """The answer of a handler; its exceptions become what its clients get over HTTP."""
    try:
        return function(*arguments)
    except Exception:
        response = httpx.Response(500, request=httpx.Request("POST", "http://flower"))
        raise httpx.HTTPStatusError("", request=response.request, response=response) from None
