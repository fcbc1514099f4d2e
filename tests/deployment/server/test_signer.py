"""Replies that a site did not sign for this order are refused, each with its reason, and harm nobody else."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from fedmcc.deployment.flower.signatures import Order, sign_reply
from fedmcc.deployment.server import membership
from fedmcc.deployment.server.signer import Signer
from fedmcc.deployment.setup.certificates import certify_server, load_authority, load_server, load_site_key
from fedmcc.deployment.setup.create import add_site, renew_certificate, revoke_site, rotate_key
from fedmcc.errors import InputError

pytestmark = pytest.mark.slow  # whole runs

VICTIM = 12  # the node of site b, which is client 1


def _order(message):
    facts = message.content["signature"]
    return Order(*(facts[key] for key in Order._fields))


def _copied(content, message):
    """Another content as the reply to a message."""
    return Message(RecordDict(dict(content)), reply_to=message)


def _unsigned(message, reply, seen):
    del reply.content["signature"]
    return reply


def _changed(message, reply, seen):
    reply.content["facts"]["samples"] += 1
    return reply


def _by_another_site(message, reply, seen):
    key = load_site_key(Path(seen["operator"].site("c").key))
    sign_reply(reply.content, _order(message), key)
    return reply


def _of_another_site(message, reply, seen):
    return _copied(seen["of a"].content, message)


def _of_an_earlier_round(message, reply, seen):
    return _copied(seen["round 1"].content, message)


def _reflected(message, reply, seen):
    return _copied(message.content, message)


def _for_another_run(message, reply, seen):
    key = load_site_key(seen["operator"].site("b").key)
    sign_reply(reply.content, _order(message)._replace(run="another"), key)
    return reply


FORGERIES = {
    _unsigned: "The message is not signed.",
    _changed: "The signature of the message does not match its content.",
    _by_another_site: "The signature of the message does not match its content.",
    _of_another_site: "The reply is signed by another site.",
    _of_an_earlier_round: "The reply answers another message.",
    _reflected: "The signature of the message does not match its content.",
    _for_another_run: "The reply belongs to another run.",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_reply_is_refused_with_its_reason_and_harms_nobody_else(forgery, three):
    federation = three()
    seen = {"operator": federation.operator}

    def forge(message, reply):
        if message.metadata.message_type != "train":
            return reply
        order = _order(message)
        if order.site == "a":
            seen["of a"] = reply
        if order.site != "b":
            return reply
        if order.round == 2:
            return forgery(message, reply, seen)
        seen["round 1"] = reply
        return reply

    federation.grid.forge = forge
    list(islice(federation.serve(), 2))
    row = federation.rows()[1]
    assert row["refused"] == [{"client": 1, "reason": FORGERIES[forgery]}]
    assert row["participants"] == [0, 2]


def test_an_unsigned_hello_does_not_join(three, caplog):
    federation = three()

    def forge(message, reply):
        if message.metadata.message_type == "query.hello" and message.metadata.dst_node_id == VICTIM:
            del reply.content["signature"]
        return reply

    federation.grid.forge = forge
    next(federation.serve())
    assert federation.rows()[0]["participants"] == [0, 2]
    assert "Rejected a site: The message is not signed." in caplog.text


def test_a_certificate_that_is_renewed_during_a_run_is_used_from_then_on(three):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    renew_certificate(federation.operator, 30)
    for _ in rounds:
        pass
    used = {m.content["signature"]["certificate"] for m in federation.grid.sent}
    assert len(used) == 2
    assert [row["participants"] for row in federation.rows()] == [[0, 1, 2]] * 3


def test_a_site_that_is_added_during_a_run_takes_part_from_the_next_round(three, monkeypatch):
    monkeypatch.setattr(membership, "NODE_LIST_SECONDS", 0.0)
    federation, added = three(), "aa"  # it sorts before b, and the numbers of the others must not change
    rounds = federation.serve()
    next(rounds)
    add_site(federation.operator, added)
    federation.grid.nodes[13] = federation.node("a") | {
        "client": added,
        "folder": str(federation.operator.site(added).path),
        "state-dir": str(federation.folder / added),
    }
    nodes = {node["client"]: number for number, node in federation.grid.nodes.items()}
    federation.operator.nodes_file.write_text(json.dumps(nodes))
    next(rounds)
    rounds.close()
    next(federation.serve())  # a run that is resumed has it too
    assert [row["participants"] for row in federation.rows()] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert json.loads((federation.folder / "run/sites.json").read_text())["sites"] == ["a", "b", "c", added]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (revoke_site, "The key of site b was revoked."),
        (rotate_key, "The key of site b was replaced."),
    ],
)
def test_an_update_with_a_key_that_is_revoked_during_the_round_does_not_count(act, reason, three):
    federation = three()
    old = federation.operator.site("b").key.read_bytes()

    def forge(message, reply):
        order = _order(message)
        if message.metadata.message_type == "train" and (order.site, order.round) == ("b", 2):
            act(federation.operator, "b")
            federation.operator.site("b").key.write_bytes(old)  # the site still has its old key
        return reply

    federation.grid.forge = forge
    list(islice(federation.serve(), 3))
    rows = federation.rows()
    assert [row["participants"] for row in rows] == [[0, 1, 2], [0, 2], [0, 2]]
    assert rows[1]["refused"] == [{"client": 1, "reason": reason}]


@pytest.mark.parametrize(("act", "change"), [(revoke_site, "revoked"), (rotate_key, "replaced")])
def test_nobody_waits_for_a_site_whose_key_changed_during_the_round(act, change, three):
    federation = three()

    def lose(message, reply):
        if message.metadata.message_type == "train" and (_order(message).site, _order(message).round) == (
            "b",
            2,
        ):
            act(federation.operator, "b")
            return None
        return reply

    federation.grid.spoil = lose
    list(islice(federation.serve(), 2))
    row = federation.rows()[1]
    assert (row["participants"], row["dropped"]) == ([0, 2], [1])
    assert row["reasons"] == {"1": f"its key was {change}."}
    assert row["seconds"] < federation.options["round_timeout"] / 2


def _signer(operator):
    return Signer(operator, "run", {7: "north"})


def _message():
    return Message(RecordDict(), 7, "query.hello", ttl=60.0)


def test_an_expired_certificate_ends_the_run_with_the_remedy(operator):
    authority = load_authority(operator.authority_key, operator.authority_certificate)
    old = certify_server(authority, "127.0.0.1", 30, datetime.now(UTC) - timedelta(days=31))
    operator.key.write_bytes(old.key_pem)
    operator.certificate.write_bytes(old.certificate_pem)
    with pytest.raises(InputError, match=r"expired on 2.*federation renew .* start the server again"):
        _signer(operator).sign([_message()])


def test_a_certificate_that_is_being_replaced_does_not_end_the_run(operator):
    signer = _signer(operator)
    signer.sign([_message()])
    renewed = certify_server(
        load_authority(operator.authority_key, operator.authority_certificate), "127.0.0.1", 30
    )
    operator.key.write_bytes(renewed.key_pem)  # the certificate is written a moment later
    (order,) = signer.sign([_message()])
    assert order.site == "north"
    with pytest.raises(InputError, match="is not the certificate of"):
        load_server(operator.key, operator.certificate)


def test_every_message_has_its_own_order(operator):
    orders = _signer(operator).sign([_message() for _ in range(3)])
    assert len({order.nonce for order in orders}) == 3
    assert {(order.kind, order.run, order.site, order.node) for order in orders} == {
        ("query.hello", "run", "north", "7")
    }
    assert {order.expires - order.created for order in orders} == {60_000}
