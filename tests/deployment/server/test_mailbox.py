"""Which messages of sites count as replies, through the state and the request handlers of Flower's server."""

import json
import math
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.task_identity import TaskIdentity

from fedmcc.deployment.server.mailbox import Fault, Letter, Mailbox

LIMIT = 1_000_000


@pytest.fixture
def link(fleet, monkeypatch):
    link = fleet.InProcess()
    monkeypatch.setattr(TaskIdentity, "_run_id", link.run)
    return link


@pytest.fixture
def box(link):
    return Mailbox(link.grid())


@pytest.fixture
def sites(link):
    return [link.site(), link.site(), link.site()]


def letter(node, limit=LIMIT):
    return Letter(node, "train", facts(0), 60.0, limit)


def facts(number):
    return RecordDict({"facts": ConfigRecord({"number": number})})


def numbers(received):
    """The number in each reply by node; for a fault its reason."""
    return {
        one.node: one.content.reason if isinstance(one.content, Fault) else one.content["facts"]["number"]
        for one in received
    }


def test_each_reply_is_received_once_from_the_node_that_was_asked(box, sites):
    sent = box.send([letter(site.node) for site in sites])
    for number, site in enumerate(sites):
        site.reply(site.pull(), facts(number))
    received = box.receive(sent)
    assert [one.sent for one in received] == sent
    assert numbers(received) == {site.node: number for number, site in enumerate(sites)}


@pytest.mark.parametrize("count", [1, 2])
def test_messages_from_the_server_to_the_server_are_no_replies(box, sites, fleet, count, caplog):
    sent = box.send([letter(site.node) for site in sites])
    victim, attacker = sites[0].pull(), sites[1]
    for number in range(count):  # the content claims to answer, the envelope must not
        lie = fleet.forged(Message(facts(666 + number), reply_to=victim), dst_node_id=SUPERLINK_NODE_ID)
        server = {"src_node_id": SUPERLINK_NODE_ID, "dst_node_id": SUPERLINK_NODE_ID}
        attacker.push(lie, envelope=fleet.forged(lie, reply_to_message_id="", **server))
    assert box.receive(sent) == []
    assert "Ignored 1 messages that do not answer" in caplog.text  # the next line comes a minute later
    sites[0].reply(victim, facts(1))
    assert numbers(box.receive(sent)) == {sites[0].node: 1}


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"src_node_id": 77}, "Its reply names another sender."),
        ({"src_node_id": SUPERLINK_NODE_ID}, "Its reply names another sender."),
        ({"run_id": 77}, "Its reply names another sender."),
        ({"reply_to_message_id": "another"}, "Its reply answers another message."),
    ],
)
def test_a_reply_whose_content_claims_something_else_is_refused(box, sites, fleet, claim, reason):
    sent = box.send([letter(sites[0].node)])
    reply = Message(facts(1), reply_to=sites[0].pull())
    sites[0].push(fleet.forged(reply, **claim), envelope=reply)
    assert numbers(box.receive(sent)) == {sites[0].node: reason}


@pytest.mark.parametrize(
    "claim",
    [
        {"src_node_id": 12},
        {"src_node_id": SUPERLINK_NODE_ID},
        {"run_id": 77},
        {"reply_to_message_id": "another"},
    ],
)
def test_a_grid_that_returns_other_messages_is_not_trusted(three, fleet, claim):
    grid = three().grid
    grid.spoil = lambda message, reply: fleet.forged(reply, **claim)
    box = Mailbox(grid)
    (received,) = [*box.receive(box.send([letter(10)])), None][:1]
    assert received is None or received.content.refused


def test_an_unfinished_upload_delays_nobody(box, sites):
    sent = box.send([letter(site.node) for site in sites])
    sites[0].push(Message(facts(0), reply_to=sites[0].pull()), upload=False)
    sites[1].reply(sites[1].pull(), facts(1))
    assert numbers(box.receive(sent)) == {sites[1].node: 1}
    assert box.receive([sent[0], sent[2]]) == []


def test_a_download_ends_at_the_deadline_and_continues_in_the_next_call(box, sites):
    sent = box.send([letter(sites[0].node)])
    sites[0].reply(sites[0].pull(), facts(5))
    assert box.receive(sent, until=time.monotonic() - 1) == []
    assert numbers(box.receive(sent)) == {sites[0].node: 5}


def arrays(size, name="weights"):
    data = np.random.default_rng(0).bytes(size)
    return RecordDict({**facts(0), name: ArrayRecord({"numbers": Array("uint8", (size,), "x", data)})})


def test_a_reply_above_its_limit_is_refused_and_deleted_at_the_server(box, sites, link):
    sent = box.send([letter(sites[0].node)])
    sites[0].reply(sites[0].pull(), arrays(LIMIT + 1))
    (received,) = box.receive(sent)
    assert received.content == Fault("Its reply is larger than 1,000,000 bytes.", refused=True)
    assert received.size > LIMIT
    assert len(link.state.object_store) == 0


def test_the_size_of_a_reply_is_counted(box, sites):
    sent = box.send([letter(sites[0].node)])
    sites[0].reply(sites[0].pull(), arrays(LIMIT // 2))
    (received,) = box.receive(sent)
    assert LIMIT // 2 < received.size < LIMIT // 2 + 5000


def test_unknown_records_are_refused_before_their_arrays_are_downloaded(box, sites):
    sent = box.send([letter(sites[0].node)])
    sites[0].reply(sites[0].pull(), arrays(LIMIT // 2, "junk"))
    (received,) = box.receive(sent)
    assert received.content == Fault("Its reply has records that do not belong to a reply.", refused=True)
    assert received.size < 5000


def test_junk_in_the_facts_is_refused(box, sites):
    sent = box.send([letter(sites[0].node, 10 * LIMIT)])
    sites[0].reply(sites[0].pull(), RecordDict({"facts": ConfigRecord({"junk": bytes(LIMIT)})}))
    assert numbers(box.receive(sent)) == {sites[0].node: "Its reply is malformed."}


def test_more_objects_than_an_update_has_are_refused(box, sites):
    sent = box.send([letter(sites[0].node)])
    many = {str(index): Array("uint8", (8,), "x", index.to_bytes(8)) for index in range(100)}
    sites[0].reply(sites[0].pull(), RecordDict({**facts(0), "weights": ArrayRecord(many)}))
    (received,) = box.receive(sent)
    assert "larger" in received.content.reason


def raw(kind, body, children=()):
    """The content of an object, written by hand."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def push_raw(site, message, contents):
    """Answer a message with the first of these contents; the others are below it."""
    ids = [get_object_id(content) for content in contents]
    tree = ObjectTree(object_id=ids[0], children=[ObjectTree(object_id=id) for id in ids[1:]])
    reply = Message(facts(0), reply_to=message)
    reply.metadata.__dict__["_message_id"] = ids[0]
    site.push_objects(reply, tree, dict(zip(ids, contents, strict=True)))


@pytest.mark.parametrize(
    "content",
    [
        raw("Message", b"\xff\xffgarbage"),
        raw("Message", b"", ["0" * 64]),
        raw("RecordDict", b"{}"),
        raw("ConfigRecord", b"\xff"),
        raw("Message", b""),
    ],
)
def test_garbage_is_the_fault_of_its_site_alone(box, sites, content):
    sent = box.send([letter(site.node) for site in sites[:2]])
    push_raw(sites[0], sites[0].pull(), [content])
    sites[1].reply(sites[1].pull(), facts(1))
    expected = {sites[0].node: "Its reply is malformed.", sites[1].node: 1}
    if b"0" * 64 in content:  # an object that was never announced
        expected[sites[0].node] = "Its reply is incomplete."
    assert numbers(box.receive(sent)) == expected


def test_an_array_that_repeats_a_chunk_is_refused_before_it_fills_the_memory(box, sites):
    sent = box.send([letter(sites[0].node)])
    message = sites[0].pull()
    chunk = raw("ArrayChunk", bytes(1000))
    body = {"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0] * 10_000}
    array = raw("Array", json.dumps(body).encode(), [get_object_id(chunk)])
    record = raw(
        "ArrayRecord", json.dumps({"numbers": get_object_id(array)}).encode(), [get_object_id(array)]
    )
    content = raw(
        "RecordDict", json.dumps({"weights": get_object_id(record)}).encode(), [get_object_id(record)]
    )
    own = Message(facts(0), reply_to=message).deflate().split(b"\x00", 1)[1]
    push_raw(
        sites[0], message, [raw("Message", own, [get_object_id(content)]), content, record, array, chunk]
    )
    (received,) = box.receive(sent)
    assert "larger" in received.content.reason


def test_a_late_reply_is_reported_and_not_downloaded(box, sites, link):
    (sent,) = box.send([letter(sites[0].node)])
    box.mark_overdue(sent)
    message = sites[0].pull()
    assert box.receive([sent]) == []
    sites[0].reply(message, arrays(LIMIT // 2))
    (received,) = box.receive([sent])
    assert (received.content.reason, received.size) == ("it replied too late.", 0)
    assert len(link.state.object_store) == 0


def test_a_site_that_disconnects_is_reported(box, sites, link):
    (sent,) = box.send([letter(sites[0].node)])
    link.state.deactivate_node(sites[0].node)
    (received,) = box.receive([sent])
    assert received.content == Fault("its connection was lost.", lost=True)


def deep_reply(site, message, depth=1500):
    """Announce objects that are nested more deeply than Flower's server can read; needs many messages."""
    reply = Message(facts(0), reply_to=message)
    ids = [f"{number:064x}" for number in range(depth)]
    for start in range(depth - 2, -1, -1):
        tree = ObjectTree(object_id=ids[start], children=[ObjectTree(object_id=ids[start + 1])])
        site.client.more[0].object_store.preregister(reply.metadata.run_id, tree)
    reply.metadata.__dict__["_message_id"] = ids[0]
    site.push_objects(reply, ObjectTree(object_id=ids[0]), {})


def test_a_reply_that_flowers_server_cannot_read_costs_others_one_round_at_most(box, sites, caplog):
    def round(numbers_expected):
        sent = box.send([letter(site.node) for site in sites])
        deep_reply(sites[0], sites[0].pull())
        for site in sites[1:]:
            site.reply(site.pull(), facts(1))
        received = box.receive(sent)
        for id in set(sent) - {one.sent for one in received}:
            box.forget(id)
        assert numbers(received) == numbers_expected

    round({})
    assert "Flower's server failed to read the replies of 3 sites: status 500." in caplog.text
    round({site.node: 1 for site in sites[1:]})


def test_messages_that_cannot_be_sent_together_are_sent_one_by_one(box, sites, monkeypatch):
    push, sizes = box._grid.push_messages, []

    def failing(messages):
        sizes.append(len(messages))
        if messages[0].metadata.dst_node_id == sites[0].node:
            raise ObjectPushError("id", 1, "session")
        return push(messages)

    monkeypatch.setattr(box._grid, "push_messages", failing)
    sent = box.send([letter(site.node) for site in sites])
    assert (sizes, [bool(id) for id in sent]) == ([3, 1, 1, 1], [False, True, True])


def test_ids_of_messages_cannot_be_guessed_from_their_content(box, sites):
    box.send([letter(sites[0].node)] * 2)
    first, second = sites[0].pull(), sites[0].pull()
    assert len(first.metadata.group_id) == 32
    assert first.metadata.group_id != second.metadata.group_id
    assert math.isclose(first.metadata.ttl, 60.0)
    assert get_object_tree(first.content) == get_object_tree(second.content)
