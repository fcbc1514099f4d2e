"""A site with a valid key that speaks for others, lies, sends garbage and has a slow link.

The sites are driven step by step through Flower's fleet interface; server, nginx, keys and TLS are real.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id

from fedmcc import config
from fedmcc.deployment.flower.packets import unpack
from fedmcc.deployment.flower.processes import free_port
from fedmcc.deployment.flower.records import Reply, pack_reply, pack_state, unpack_task
from fedmcc.deployment.flower.signatures import Order, sign_reply
from fedmcc.deployment.server.launch import running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.setup.certificates import load_site_key
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec
from fedmcc.deployment.site.app import client_app
from fedmcc.messages import Update
from fedmcc.runs.directory import Run

ROUND_TIMEOUT = 30.0
PAUSE = 12.0  # seconds of a slow link before each of the three objects of an update
JUNK = 12_000_000  # bytes
START_SECONDS = 180.0  # for slow machines
RECIPE: dict[str, Any] = {
    "clusters": 2,
    "threads": 1,
    "device": "cpu",
    "data": {"name": "folder", "size": 8},
    "views": {"preset": "digits", "size": 8},
    "encoder": {"width": 4},
    "method": {"name": "fedsimclr", "rounds": 5, "epochs": 1, "hidden": 8, "projections": 4},
    "training": {"batch_size": 32},
    "clustering": {"name": "kmeans"},
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

    def pull(self, name: str) -> Message:
        """Wait for the next message to a site."""
        return self._wait_for({name})[name]

    def tasks(self) -> dict[str, Message]:
        """Wait for the next tasks of all sites; greetings before them are answered."""
        return self._wait_for({"a", "b", "c"}, greetings=False)

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

    def lie(self, name: str, message: Message, change: Callable[[RecordDict], object]) -> None:
        """Send the reply of a site after a change, signed again."""
        content = unpack(self.reply(name, message).content)
        change(content)
        facts = unpack(message.content)["signature"]
        order = Order(*(facts[key] for key in Order._fields))
        sign_reply(content, order, load_site_key(Path(self.own[name]["folder"]) / "site.key"))
        self.nodes[name].reply(message, content)


@pytest.fixture
def federation(tmp_path: Path, owners: Path, fleet: ModuleType) -> Iterator[tuple[Sites, Run]]:
    spec = FederationSpec("127.0.0.1", free_port(), free_port(), ("a", "b", "c"))
    operator = create_federation(tmp_path / "federation", spec, 1)
    policy = JoinPolicy(min_sites=3, wait=START_SECONDS, round_timeout=ROUND_TIMEOUT, retry_seconds=0.5)
    with running_server(operator) as server:
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
    sent = unpack_task(unpack(task.content)).task
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


def set_fact(name: str, value: Any) -> Callable[[RecordDict], None]:
    """A change of one fact of a reply."""
    return lambda content: content["facts"].__setitem__(name, value)


def add_junk(content: RecordDict) -> None:
    """Add a record that does not belong to an update."""
    data = random.Random(0).randbytes(JUNK)
    content["junk"] = ArrayRecord({"numbers": Array("uint8", (JUNK,), "fedmcc.numbers", data)})


def add_centroids(content: RecordDict) -> None:
    """Replace the centroids by 100,000 that represent no images."""
    empty = {"centroids": torch.zeros(100_000, 4), "sizes": torch.zeros(100_000, dtype=torch.int64)}
    header, numbers = pack_state(empty)
    content["facts"]["extras"] = header
    content["extras"] = ArrayRecord({"numbers": numbers})


LIES: list[tuple[Callable[[RecordDict], None], str]] = [
    (set_fact("samples", 2**53), "Its number of images is not an integer from 1 to 1000000000."),
    (set_fact("loss", 1.7e308), "Its loss is beyond 1e+09"),
    (add_junk, "Its reply has records that do not belong to a reply."),
]


def test_a_hostile_site_speaks_for_nobody_and_delays_nobody(
    federation: tuple[Sites, Run], fleet: ModuleType
) -> None:
    sites, run = federation
    sites.lie("c", sites.pull("c"), set_fact("channels", 2**33))  # of which a network would need 1.2 TB
    tasks = sites.tasks()
    forge_replies(fleet, sites, tasks)
    for name in "abc":
        sites.nodes[name].push(sites.reply(name, tasks[name]))
    first = wait_for_rows(run, 1)[0]
    assert (first["participants"], first["refused"]) == ([0, 1, 2], [])
    assert first["loss"] < 100  # no update of the hostile site counts for another one
    for number, (lie, reason) in enumerate(LIES, start=2):
        check_refused(hostile_round(sites, run, number, lie), reason)
    check_slow_link(sites, run, 5)
    honest = hostile_round(sites, run, 6, lambda content: None)
    assert honest["participants"] == [0, 1, 2]  # also the site with the slow link
    check_refused(
        hostile_round(sites, run, 7, add_centroids), "It has 100000 centroids; at most 4 are allowed."
    )


def hostile_round(sites: Sites, run: Run, number: int, lie: Callable[[RecordDict], object]) -> dict[str, Any]:
    """A round in which a and b are honest and c lies; returns its row."""
    tasks = sites.tasks()
    sites.lie("c", tasks["c"], lie)
    for name in "ab":
        sites.nodes[name].push(sites.reply(name, tasks[name]))
    return wait_for_rows(run, number)[number - 1]


def check_refused(row: dict[str, Any], reason: str) -> None:
    """Check that the update of c was refused for this reason, and hardly any of its junk was downloaded."""
    (refused,) = row["refused"]
    assert (row["participants"], refused["client"]) == ([0, 1], 2)
    assert refused["reason"].startswith(reason)
    assert row["bytes"]["2"][1] < JUNK / 2


def check_slow_link(sites: Sites, run: Run, number: int) -> None:
    """Check that a site whose upload takes longer than a round costs only its own update."""
    tasks = sites.tasks()
    arguments = {"args": (sites.reply("c", tasks["c"]),), "kwargs": {"pause": PAUSE}}
    threading.Thread(target=sites.nodes["c"].push, daemon=True, **arguments).start()
    for name in "ab":
        sites.nodes[name].push(sites.reply(name, tasks[name]))
    row = wait_for_rows(run, number)[number - 1]
    assert (row["participants"], row["dropped"]) == ([0, 1], [2])
    assert row["reasons"] == {"2": f"it did not reply within {ROUND_TIMEOUT:g} seconds."}
    assert row["seconds"] < 1.1 * ROUND_TIMEOUT


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
