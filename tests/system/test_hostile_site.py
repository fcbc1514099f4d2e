"""A site with a valid key that speaks for others, sends garbage and does not finish its upload.

The sites are driven step by step through Flower's fleet interface; server, keys and TLS are real.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id

from fedmcc import config
from fedmcc.deployment.flower.processes import free_port
from fedmcc.deployment.flower.records import Reply, pack_reply, unpack_task
from fedmcc.deployment.server.launch import running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec
from fedmcc.deployment.site.app import client_app
from fedmcc.messages import Update
from fedmcc.runs.directory import Run

ROUND_TIMEOUT = 30.0
START_SECONDS = 300.0  # for slow machines
RECIPE: dict[str, Any] = {
    "clusters": 2,
    "threads": 1,
    "device": "cpu",
    "data": {"name": "folder", "size": 8},
    "views": {"preset": "digits", "size": 8},
    "encoder": {"width": 4},
    "method": {"name": "fedsimclr", "rounds": 2, "epochs": 1, "hidden": 8, "projections": 4},
    "training": {"batch_size": 32},
}


class Sites:
    """Three sites a, b and c that answer when a test tells them to."""

    def __init__(self, server: Any, fleet: ModuleType, home: Path, images: Path) -> None:
        operator = server.operator
        address, authority = operator.read_spec().address, operator.authority_certificate
        self.nodes = {name: fleet.connect(address, authority, operator.site(name).key) for name in "abc"}
        self.own = {
            name: {
                "client": name,
                "folder": str(operator.site(name).path),
                "state-dir": str(home / name),
                "data": str(images / name),
            }
            for name in "abc"
        }

    def pull(self, name: str, seconds: float = START_SECONDS) -> Message:
        """Wait for the next message to a site."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (message := self.nodes[name].pull()) is not None:
                return message
            time.sleep(0.2)
        raise TimeoutError(f"no message to {name}")

    def reply(self, name: str, message: Message) -> Message:
        """The honest reply of a site."""
        context = Context(message.metadata.run_id, self.nodes[name].node, self.own[name], RecordDict(), {})
        return client_app(message, context)


@pytest.fixture
def federation(tmp_path: Path, owners: Path, fleet: ModuleType) -> Iterator[tuple[Sites, Run]]:
    spec = FederationSpec("127.0.0.1", free_port(), free_port(), ("a", "b", "c"))
    operator = create_federation(tmp_path / "federation", spec, 1)
    policy = JoinPolicy(min_sites=3, wait=START_SECONDS, round_timeout=ROUND_TIMEOUT)
    with running_server(operator, proxied=False) as server:
        sites = Sites(server, fleet, tmp_path, owners)
        submit(server, RunRequest(config.dump(config.parse(RECIPE)), tmp_path / "run", policy))
        yield sites, Run(tmp_path / "run")
        for site in sites.nodes.values():
            site.close()


def wait_for_rows(run: Run, count: int) -> list[dict[str, Any]]:
    """The rows of the run, once there are as many."""
    until = time.monotonic() + START_SECONDS
    while len(run.rows()) < count and time.monotonic() < until:
        time.sleep(0.2)
    return run.rows()


def poisoned(task: Message) -> RecordDict:
    """An update with a loss that would show in the mean of a round."""
    sent = unpack_task(task.content).task
    update = Update(sent.client, sent.stage, sent.round, 10**6, 1e6, sent.weights)
    return pack_reply(Reply(update, 0.0))


def send_to_the_server(fleet: ModuleType, site: Any, message: Message, upload: bool = True) -> None:
    """Send a message that pretends to answer, in an envelope from the server to the server."""
    server = {"src_node_id": SUPERLINK_NODE_ID, "dst_node_id": SUPERLINK_NODE_ID}
    site.push(message, upload=upload, envelope=fleet.forged(message, reply_to_message_id="", **server))


def send_garbage(fleet: ModuleType, site: Any, reply: Message) -> None:
    """Send a message whose content Flower cannot parse."""
    content = b"Message  9\x00\xff\xffgarbage"
    server = {"src_node_id": SUPERLINK_NODE_ID, "dst_node_id": SUPERLINK_NODE_ID}
    envelope = fleet.forged(reply, reply_to_message_id="", message_id=get_object_id(content), **server)
    site.push_objects(
        envelope, ObjectTree(object_id=get_object_id(content)), {get_object_id(content): content}
    )


def test_a_hostile_site_speaks_for_nobody_and_delays_nobody(
    federation: tuple[Sites, Run], fleet: ModuleType
) -> None:
    sites, run = federation
    for name in "abc":
        hello = sites.pull(name)
        sites.nodes[name].push(sites.reply(name, hello))
    tasks = {name: sites.pull(name) for name in "abc"}
    forge_replies(fleet, sites, tasks)
    for name in "abc":
        sites.nodes[name].push(sites.reply(name, tasks[name]))
    first = wait_for_rows(run, 1)[0]
    assert (first["participants"], first["refused"]) == ([0, 1, 2], [])
    assert first["loss"] < 100  # no update of the hostile site counts for another one

    tasks = {name: sites.pull(name) for name in "abc"}
    sites.nodes["c"].push(sites.reply("c", tasks["c"]), upload=False)
    for name in "ab":
        sites.nodes[name].push(sites.reply(name, tasks[name]))
    second = wait_for_rows(run, 2)[1]
    assert (second["participants"], second["dropped"]) == ([0, 1], [2])
    assert second["reasons"] == {"2": "it did not reply within 30 seconds."}
    assert second["seconds"] < 1.1 * ROUND_TIMEOUT


def forge_replies(fleet: ModuleType, sites: Sites, tasks: dict[str, Message]) -> None:
    """Send everything that counted, or ended the run, before any site has answered."""
    attacker = sites.nodes["c"]
    for name in "ab":
        lie = Message(poisoned(tasks[name]), reply_to=tasks[name])
        send_to_the_server(fleet, attacker, lie)
    own = Message(poisoned(tasks["c"]), reply_to=tasks["c"])
    send_to_the_server(fleet, attacker, fleet.forged(own, src_node_id=sites.nodes["a"].node), upload=False)
    send_garbage(fleet, attacker, own)
    for node in (sites.nodes["a"].node, SUPERLINK_NODE_ID):  # Flower's server refuses these itself
        attacker.push(fleet.forged(own, src_node_id=node))
