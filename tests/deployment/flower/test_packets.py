"""Packets: small messages in one record, and packets that a hostile site writes."""

import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedmcc.deployment.flower.packets import MAX_PACKET, is_packed, pack, unpack
from fedmcc.deployment.flower.records import UnreadableError, pack_text
from fedmcc.deployment.flower.signatures import Order, digest, sign_order, sign_reply, verify_reply
from fedmcc.deployment.server.mailbox import Fault, Letter, Mailbox
from fedmcc.deployment.setup.certificates import create_site_key, load_public_key, load_server
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.deployment.site.app import IGNORED, client_app

ORDER = Order("train", "a1", "north", "7", "joint", 3, "0f" * 16, 1, 2)


def content(size: int = 20_000) -> RecordDict:
    facts = {"stage": "joint", "round": -3, "loss": 0.5, "half": True, "header": b"\xff", "sizes": [1, 2]}
    data = random.Random(0).randbytes(size)
    arrays = ArrayRecord({"numbers": Array("uint8", (size,), "fedmcc.numbers", data)})
    empty = ArrayRecord({"numbers": Array("uint8", (0,), "fedmcc.numbers", b"")})
    return RecordDict({"facts": ConfigRecord(facts), "weights": arrays, "extras": empty})


def packet(data: Any, **more: Any) -> RecordDict:
    return RecordDict({"packet": ConfigRecord({"content": data, **more})})


def serialized(records: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(records).SerializeToString())


def test_a_packet_contains_every_record_with_its_names_types_and_values() -> None:
    restored = unpack(pack(content()))
    assert list(restored) == list(content())
    assert digest(restored, {}) == digest(content(), {})  # what signatures cover


def test_a_small_task_and_its_reply_take_sixteen_requests_per_site(
    fleet: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, answered, requests = fleet.InProcess(), fleet._answered, list[str]()
    monkeypatch.setattr(TaskIdentity, "_run_id", link.run)
    monkeypatch.setattr(
        fleet, "_answered", lambda function, *rest: requests.append(function) or answered(function, *rest)
    )
    box, sites = Mailbox(link.grid()), [link.site() for _ in range(3)]
    own = [content(20_000 + number) for number in range(3)]  # signatures differ as well
    letters = [Letter(site.node, "train", own[n], 60.0, 10_000_000) for n, site in enumerate(sites)]
    sent = box.send(letters)
    for site in sites:
        site.reply(site.pull(), pack(content()))
    assert len(box.receive(sent)) == 3
    assert len(requests) == 3 + 16 * len(sites)  # the server sends all tasks and asks for replies at once


def test_a_small_message_has_three_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    assert len(get_all_nested_objects(Message(content(), 7, "train"))) == 8
    assert len(get_all_nested_objects(Message(pack(content()), 7, "train"))) == 3


def test_a_large_content_is_sent_as_it_is() -> None:
    large = content(MAX_PACKET)  # with its facts it is larger than a packet
    assert pack(large) is large
    assert unpack(large) is large
    assert is_packed(pack(content(MAX_PACKET - 1000)))


@pytest.mark.parametrize(
    "hostile",
    [
        packet(b"\xff\xffgarbage"),
        packet("text"),
        packet(serialized(content()), more=1),
        packet(serialized(content(MAX_PACKET))),
        packet(serialized(packet(serialized(content())))),
        packet(serialized(RecordDict({"junk": ConfigRecord({})}))),
        RecordDict({**packet(serialized(content())), "facts": ConfigRecord({})}),
        RecordDict({"packet": ArrayRecord({})}),
    ],
)
def test_a_malformed_packet_is_refused(hostile: RecordDict) -> None:
    with pytest.raises(UnreadableError, match="packet"):
        unpack(hostile)


def test_no_changed_byte_of_a_packet_is_accepted_with_the_signature_of_the_site() -> None:
    key, records, accepted = load_ssh_private_key(create_site_key().private, None), content(200), 0
    sign_reply(records, ORDER, key)
    data, draw = pack(records)["packet"]["content"], random.Random(1)
    for _ in range(500):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            received = unpack(packet(bytes(changed)))
            verify_reply(received, ORDER, key.public_key())
            accepted += digest(received, {}) != digest(records, {})
        except UnreadableError:
            continue
    assert accepted == 0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (pack(content()), None),
        (content(), None),  # a site may also send the records themselves
        (packet(b"\xff\xffgarbage"), "Its reply is malformed."),
        (packet(bytes(2_000_000)), "Its reply is malformed."),
        (packet(serialized(RecordDict({"junk": ConfigRecord({})}))), "Its reply is malformed."),
    ],
)
def test_packets_pass_flowers_server_both_ways(
    fleet: ModuleType, monkeypatch: pytest.MonkeyPatch, reply: RecordDict, expected: str | None
) -> None:
    link = fleet.InProcess()
    monkeypatch.setattr(TaskIdentity, "_run_id", link.run)
    box, site = Mailbox(link.grid()), link.site()
    sent = box.send([Letter(site.node, "train", content(), 60.0, 10_000_000)])
    order = site.pull()
    assert is_packed(order.content)
    assert digest(unpack(order.content), {}) == digest(content(), {})
    site.reply(order, reply)
    (received,) = box.receive(sent, time.monotonic() + 60)
    wanted = digest(content(), {}) if expected is None else Fault(expected, refused=True)
    assert wanted == (received.content if expected else digest(received.content, {}))


def test_a_site_answers_a_packet_with_a_packet_and_records_a_malformed_one(
    operator: OperatorFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = operator.site("north").path
    node = {"client": "north", "state-dir": str(tmp_path / "state"), "folder": str(folder)}
    greeting, now = pack_text("Another version."), round(1000 * time.time())
    order = Order("query.refused", "run", "north", "7", "", 0, "0" * 32, now, now + 60_000)
    sign_order(greeting, order, load_server(operator.key, operator.certificate), {})
    replies = [
        client_app(Message(sent, 7, "query.refused"), Context(1, 7, node, RecordDict(), {}))
        for sent in (pack(greeting), packet(b"\xff\xffgarbage"))
    ]
    verify_reply(unpack(replies[0].content), order, load_public_key(operator.public_key("north")))
    assert [is_packed(reply.content) for reply in replies] == [True, False]
    assert replies[1].content["facts"]["failure"] == IGNORED
    assert "The packet is malformed" in caplog.text
    assert '"event":"ignored"' in operator.site("north").audit_book.read_text()
