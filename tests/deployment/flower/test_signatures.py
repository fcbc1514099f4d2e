"""Signed messages: what is signed, and that nothing of it can be changed, moved or used twice."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedmcc.deployment.flower.signatures import (
    ORDER,
    REPLY,
    ForgedError,
    Order,
    OutdatedError,
    Received,
    check_receiver,
    check_time,
    digest,
    is_signed_line,
    sign_order,
    sign_reply,
    stage_and_round,
    statement,
    verify_order,
    verify_reply,
)
from fedmcc.deployment.setup.certificates import certify_server, create_authority, create_site_key, der

NOW = round(1000 * time.time())
ONE = Order("train", "a1", "north", "18446744073709551615", "joint", 3, "0f" * 16, NOW, NOW + 60_000)
OTHER: dict[str, Any] = {
    "kind": "query.hello",
    "run": "b2",
    "site": "south",
    "node": "7",
    "stage": "polish",
    "round": 4,
    "nonce": "aa" * 16,
    "created": NOW + 1,
    "expires": NOW + 60_001,
}
AUTHORITY = create_authority()
SERVER = certify_server(AUTHORITY, "fed.example.org", 10)
KEYS = create_site_key()
PRIVATE, PUBLIC = load_ssh_private_key(KEYS.private, None), load_ssh_public_key(KEYS.public)


def content() -> RecordDict:
    facts = {"stage": "joint", "round": 3, "loss": 0.5, "half": True, "header": b"ab", "sizes": [1, 2]}
    numbers = Array("uint8", (3,), "fedmcc.numbers", b"abc")
    return RecordDict({"facts": ConfigRecord(facts), "weights": ArrayRecord({"numbers": numbers})})


def signed_order(order: Order = ONE) -> RecordDict:
    records = content()
    sign_order(records, order, SERVER, {})
    return records


def verified(records: RecordDict) -> Received:
    return verify_order(records, AUTHORITY.certificate, "fed.example.org")


def test_an_order_is_read_as_it_was_signed():
    received = verified(signed_order())
    assert received == (ONE, SERVER.certificate)
    check_receiver(received.order, "train", "north", 2**64 - 1)
    check_time(received, NOW / 1000)


def test_a_reply_to_an_order_is_verified():
    records = content()
    sign_reply(records, ONE, PRIVATE)
    verify_reply(records, ONE, PUBLIC)


def test_the_signed_bytes_are_fields_with_their_lengths():
    fields = (b"fedmcc 4", b"reply", *(str(value).encode() for value in ONE), bytes(32))
    written = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    assert statement(REPLY, ONE, bytes(32)) == written


def test_lines_of_audit_books_outlive_a_version_of_the_messages():
    fields = (b"fedmcc 2", b"line", b"{}")
    written = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    assert is_signed_line(b"{}", PRIVATE.sign(written, ec.ECDSA(hashes.SHA384())), PUBLIC)


def test_moving_a_letter_between_neighbouring_fields_changes_the_signed_bytes():
    moved = ONE._replace(run=ONE.run + ONE.site[0], site=ONE.site[1:])
    assert statement(ORDER, ONE, b"") != statement(ORDER, moved, b"")


def test_the_digest_is_that_of_every_name_type_and_value():
    record = RecordDict({"facts": ConfigRecord({"b": 1.0, "a": b"xy"})})
    fields = [b"facts", b"ConfigRecord", b"2", b"a", b"bytes", b"xy", b"b", b"float", b"\x3f\xf0" + bytes(6)]
    written = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    assert digest(record, {}) == sha256(written).digest()


@pytest.mark.parametrize("field", Order._fields)
def test_a_changed_field_of_an_order_is_noticed(field):
    records = signed_order()
    records["signature"][field] = OTHER[field]
    with pytest.raises(ForgedError, match="does not match"):
        verified(records)


@pytest.mark.parametrize("field", Order._fields)
def test_a_reply_counts_only_for_the_order_that_it_answers(field):
    records = content()
    sign_reply(records, ONE, PRIVATE)
    with pytest.raises(ForgedError):
        verify_reply(records, ONE._replace(**{field: OTHER[field]}), PUBLIC)


@pytest.mark.parametrize(
    ("field", "reason"), [("site", "another site"), ("run", "another run"), ("nonce", "another message")]
)
def test_a_reply_from_elsewhere_is_refused_with_its_reason(field, reason):
    records = content()
    sign_reply(records, ONE._replace(**{field: OTHER[field]}), PRIVATE)
    with pytest.raises(ForgedError, match=reason):
        verify_reply(records, ONE, PUBLIC)
    records["signature"][field] = getattr(ONE, field)  # the claim is corrected, the signature cannot be
    with pytest.raises(ForgedError, match="does not match"):
        verify_reply(records, ONE, PUBLIC)


def _replaced(**changes: Any) -> Callable[[RecordDict], None]:
    def change(records: RecordDict) -> None:
        array = records["weights"]["numbers"]
        old = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
        records["weights"]["numbers"] = Array(**{**old, **changes})

    return change


CHANGES: dict[str, Callable[[RecordDict], None]] = {
    "a value": lambda records: records["facts"].update(round=4),
    "a type": lambda records: records["facts"].update(half=1),
    "a text as bytes": lambda records: records["facts"].update(stage=b"joint"),
    "a list": lambda records: records["facts"].update(sizes=[12]),
    "a new fact": lambda records: records["facts"].update(more=""),
    "a missing fact": lambda records: records["facts"].pop("loss"),
    "numbers": _replaced(data=b"abd"),
    "the shape": _replaced(shape=(1, 3)),
    "the data type": _replaced(dtype="int8"),
    "the encoding": _replaced(stype="numpy.ndarray"),
    "the name of an array": lambda records: records.update(
        weights=ArrayRecord({"other": records["weights"]["numbers"]})
    ),
    "the name of a record": lambda records: records.update(extras=records.pop("weights")),
    "a new record": lambda records: records.update(more=MetricRecord({"one": 1})),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_content_is_noticed_both_ways(name):
    order, reply = signed_order(), content()
    sign_reply(reply, ONE, PRIVATE)
    for records, check in ((order, verified), (reply, lambda each: verify_reply(each, ONE, PUBLIC))):
        check(records)
        CHANGES[name](records)
        with pytest.raises(ForgedError, match="does not match"):
            check(records)


def test_an_order_is_not_accepted_as_a_reply_nor_a_reply_as_an_order():
    order, reply = signed_order(), content()
    with pytest.raises(ForgedError, match="does not match"):  # even if the site had the server's key
        verify_reply(order, ONE, SERVER.key.public_key())
    sign_reply(reply, ONE, SERVER.key)
    reply["signature"].update(**ONE._asdict(), certificate=der(SERVER.certificate))
    with pytest.raises(ForgedError, match="does not match"):
        verified(reply)


def test_a_reply_with_the_key_of_another_site_is_refused():
    records = content()
    sign_reply(records, ONE, load_ssh_private_key(create_site_key().private, None))
    with pytest.raises(ForgedError, match="does not match"):
        verify_reply(records, ONE, PUBLIC)


@pytest.mark.parametrize("host", ["fed.example.org", "elsewhere.example.org"])
def test_only_a_server_that_the_authority_certified_for_the_host_is_accepted(host):
    records, stranger = content(), certify_server(create_authority(), "fed.example.org", 10)
    sign_order(records, ONE, stranger if host == "fed.example.org" else SERVER, {})
    with pytest.raises(ForgedError, match="no certificate of the authority"):
        verify_order(records, AUTHORITY.certificate, host)


def test_the_authoritys_certificate_is_on_sites_and_signs_no_messages():
    records = content()
    sign_order(records, ONE, AUTHORITY, {})
    with pytest.raises(ForgedError, match="no certificate of the authority"):
        verified(records)


def test_the_certificate_of_the_server_does_not_make_the_signature_of_another_key_valid():
    records, site = content(), load_ssh_private_key(KEYS.private, None)
    sign_order(records, ONE, SERVER._replace(key=site), {})
    with pytest.raises(ForgedError, match="does not match"):
        verified(records)


def test_a_renewed_certificate_of_the_same_authority_is_accepted():
    records = content()
    sign_order(records, ONE, certify_server(AUTHORITY, "fed.example.org", 10), {})
    assert verified(records).order == ONE


@pytest.mark.parametrize(
    "damage", [None, "gone", {}, {"signature": b""}, {"certificate": b"x"}, {"round": "3"}]
)
def test_a_missing_or_damaged_signature_is_forged(damage):
    records = signed_order()
    if damage is None:
        del records["signature"]
    elif damage == "gone":
        records["signature"] = ArrayRecord({})
    else:
        records["signature"] = ConfigRecord({**records["signature"], **damage} if damage else {})
    with pytest.raises(ForgedError):
        verified(records)
    with pytest.raises(ForgedError):
        verify_reply(records, ONE, PUBLIC)


@pytest.mark.parametrize(
    "receiver", [("query.hello", "north", 2**64 - 1), ("train", "south", 2**64 - 1), ("train", "north", 1)]
)
def test_an_order_for_another_site_node_or_purpose_is_forged(receiver):
    with pytest.raises(ForgedError, match="another site or purpose"):
        check_receiver(ONE, *receiver)


def test_an_order_counts_between_its_creation_and_its_expiry():
    received = verified(signed_order())
    check_time(received, NOW / 1000 - 599)  # the clock of a site may be slow
    check_time(received, NOW / 1000 + 60)
    with pytest.raises(OutdatedError, match="correct the clocks"):
        check_time(received, NOW / 1000 - 601)
    with pytest.raises(OutdatedError, match="expired before it was started"):
        check_time(received, NOW / 1000 + 61)


def test_an_expired_certificate_is_named_with_its_date_and_remedy():
    records = content()
    old = certify_server(AUTHORITY, "fed.example.org", 30, datetime.now(UTC) - timedelta(days=31))
    sign_order(records, ONE, old, {})
    end = old.certificate.not_valid_after_utc
    with pytest.raises(OutdatedError, match=f"expired on {end:%Y-%m-%d} .*federation renew"):
        check_time(verified(records), NOW / 1000)


def test_the_digests_of_shared_arrays_are_computed_once():
    shared, digests = content(), {}
    digest(shared, digests)
    (known,) = digests
    digests[known] = bytes(32)  # a second computation would not use it
    assert digest(shared, digests) != digest(shared, {})


def test_stage_and_round_are_those_of_a_task_and_empty_for_other_messages():
    assert stage_and_round(content()) == ("joint", 3)
    for facts in ({"text": "hello"}, {"stage": "joint"}, {"stage": 1, "round": 2}):
        assert stage_and_round(RecordDict({"facts": ConfigRecord(facts)})) == ("", 0)
    assert stage_and_round(RecordDict()) == ("", 0)
