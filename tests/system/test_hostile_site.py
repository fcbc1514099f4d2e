"""A site with a valid key that speaks for others, lies, sends garbage and has a slow link.

Another one is added during the run and revoked in a round. The sites are driven step by step through Flower's
fleet interface; server, nginx, keys and TLS are real. Each test continues the run of the one before.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id
from typer.testing import CliRunner

from fedmcc import config
from fedmcc.cli import app
from fedmcc.deployment.flower.packets import unpack
from fedmcc.deployment.flower.processes import free_port, wait_until
from fedmcc.deployment.flower.records import Reply, pack_reply, pack_state, unpack_task
from fedmcc.deployment.server.launch import running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.server.supervision import Supervisor
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec
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
    "method": {"name": "fedsimclr", "rounds": 9, "epochs": 1, "hidden": 8, "projections": 4},
    "training": {"batch_size": 32},
    "clustering": {"name": "kmeans"},
}


@dataclass
class Federation:
    """Sites, their run, and what its operator can do and read."""

    sites: Any
    run: Run
    said: list[str]  # by the server
    rounds: int = 0  # that were read

    def next_row(self) -> dict[str, Any]:
        """The row of the next round, once the run has it."""
        self.rounds += 1
        assert wait_until(lambda: len(self.run.rows()) >= self.rounds, START_SECONDS)
        return self.run.rows()[self.rounds - 1]

    def command(self, command: str, site: str) -> None:
        """Change the members of the federation, as its operator does."""
        arguments = ["federation", command, str(self.sites.operator.path), "--site", site]
        assert CliRunner().invoke(app, arguments).exit_code == 0


@pytest.fixture(scope="module")
def federation(
    nginx: str, tmp_path_factory: pytest.TempPathFactory, owners: Path, fleet: ModuleType
) -> Iterator[Federation]:
    home = tmp_path_factory.mktemp("hostile")
    spec = FederationSpec("127.0.0.1", free_port(), free_port(), ("a", "b", "c"))
    operator = create_federation(home / "federation", spec, 1)
    policy = JoinPolicy(min_sites=3, wait=START_SECONDS, round_timeout=ROUND_TIMEOUT, retry_seconds=0.5)
    with running_server(operator) as server, closing(fleet.Sites(operator, owners)) as sites:
        submit(server, RunRequest(config.dump(config.parse(RECIPE)), home / "run", policy))
        said: list[str] = []
        with supervised(Supervisor(server, said.append)):
            yield Federation(sites, Run(home / "run"), said)


@contextmanager
def supervised(supervisor: Supervisor) -> Iterator[None]:
    """Let the supervisor look after the server every half second, as `fedmcc server start` does."""
    stop = threading.Event()

    def check() -> None:
        while not stop.wait(0.5):
            supervisor.check()

    thread = threading.Thread(target=check)
    thread.start()
    yield
    stop.set()
    thread.join()


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
    federation: Federation, fleet: ModuleType
) -> None:
    sites = federation.sites
    sites.lie("c", sites.pull("c"), set_fact("channels", 2**33))  # of which a network would need 1.2 TB
    tasks = sites.tasks("abc")
    forge_replies(fleet, sites, tasks)
    sites.answer(tasks, "abc")
    first = federation.next_row()
    assert (first["participants"], first["refused"]) == ([0, 1, 2], [])
    assert first["loss"] < 100  # no update of the hostile site counts for another one
    for lie, reason in LIES:
        check_refused(hostile_round(federation, lie), reason)
    check_slow_link(federation)
    honest = hostile_round(federation, lambda content: None)
    assert honest["participants"] == [0, 1, 2]  # also the site with the slow link


def test_a_site_that_is_added_during_a_run_takes_part_from_the_next_round(federation: Federation) -> None:
    sites = federation.sites
    tasks = sites.tasks("abc")
    federation.command("add", "d")
    sentence = "d can connect from now on; it takes part from the next round."
    assert wait_until(lambda: sentence in federation.said, START_SECONDS)
    sites.connect("d")
    sites.answer({"d": sites.pull("d")}, "d")  # the greeting
    sites.answer(tasks, "abc")
    assert federation.next_row()["participants"] == [0, 1, 2]
    sites.answer(sites.tasks("abcd"), "abcd")
    assert federation.next_row()["participants"] == [0, 1, 2, 3]


def test_the_update_of_a_site_that_is_revoked_during_the_round_does_not_count(
    federation: Federation,
) -> None:
    sites = federation.sites
    tasks = sites.tasks("abcd")
    update = sites.reply("d", tasks["d"])
    federation.command("revoke", "d")
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        sites.nodes["d"].push(update)
    sites.answer(tasks, "abc")
    row = federation.next_row()
    reasons = row.get("reasons", {}) | {str(each["client"]): each["reason"] for each in row["refused"]}
    assert (row["participants"], list(reasons)) == ([0, 1, 2], ["3"])
    assert reasons["3"].endswith("was revoked.")
    assert row["seconds"] < ROUND_TIMEOUT / 2  # nobody waits for a reply that cannot come
    with pytest.raises(httpx.HTTPStatusError, match="412"):
        sites.connect("d")


def test_centroids_that_represent_no_images_are_refused(federation: Federation) -> None:
    federation.sites.answer(federation.sites.tasks("abc"), "abc")  # the second moments of whitening
    assert federation.next_row()["participants"] == [0, 1, 2]
    row = hostile_round(federation, add_centroids)
    check_refused(row, "It has 100000 centroids; at most 4 are allowed.")


def hostile_round(federation: Federation, lie: Callable[[RecordDict], object]) -> dict[str, Any]:
    """A round in which a and b are honest and c lies; returns its row."""
    tasks = federation.sites.tasks("abc")
    federation.sites.lie("c", tasks["c"], lie)
    federation.sites.answer(tasks, "ab")
    return federation.next_row()


def check_refused(row: dict[str, Any], reason: str) -> None:
    """Check that the update of c was refused for this reason, and hardly any of its junk was downloaded."""
    (refused,) = row["refused"]
    assert (row["participants"], refused["client"]) == ([0, 1], 2)
    assert refused["reason"].startswith(reason)
    assert row["bytes"]["2"][1] < JUNK / 2


def check_slow_link(federation: Federation) -> None:
    """Check that a site whose upload takes longer than a round costs only its own update."""
    sites = federation.sites
    tasks = sites.tasks("abc")
    arguments = {"args": (sites.reply("c", tasks["c"]),), "kwargs": {"pause": PAUSE}}
    threading.Thread(target=sites.nodes["c"].push, daemon=True, **arguments).start()
    sites.answer(tasks, "ab")
    row = federation.next_row()
    assert (row["participants"], row["dropped"]) == ([0, 1], [2])
    assert row["reasons"] == {"2": f"it did not reply within {ROUND_TIMEOUT:g} seconds."}
    assert row["seconds"] < 1.1 * ROUND_TIMEOUT


def forge_replies(fleet: ModuleType, sites: Any, tasks: dict[str, Message]) -> None:
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
