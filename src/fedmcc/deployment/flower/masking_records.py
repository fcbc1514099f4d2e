"""Converts the messages of secure aggregation to Flower's records and back: pure functions.

Each message is one text in the facts, in JSON with bytes as hexadecimal numbers. Lengths are checked here.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedmcc.deployment.flower.records import FACTS, Failure, UnreadableError, guard, read_fact, read_failure
from fedmcc.deployment.messages import Attempt, Peer
from fedmcc.federation.secure_aggregation.participant import PublicKeys, Revealed, Shares

KEY_BYTES = HASH_BYTES = 32
MAX_BYTES = 4096  # of a key, a signature or a share
CONTENT = "content"
MASKED = "masked"  # the name of the vector in an update


def pack_attempt(attempt: Attempt, content: Any = None) -> RecordDict:
    """Convert a step of an attempt to records; `content` is what the step needs besides the attempt."""
    text = attempt_text(attempt, content)
    return RecordDict({FACTS: ConfigRecord({"stage": attempt.stage, "round": attempt.round, CONTENT: text})})


def attempt_text(attempt: Attempt, content: Any = None) -> str:
    """An attempt, and what a step needs besides, as JSON."""
    images = {str(client): count for client, count in attempt.images.items()}
    return json.dumps({"attempt": {**attempt._asdict(), "images": images}, "content": content})


def unpack_attempt(records: RecordDict) -> tuple[Attempt, Any]:
    """Convert records of `pack_attempt` back to the attempt and the content."""
    return read_attempt(read_fact(records, CONTENT, str))


@guard()
def read_attempt(text: str) -> tuple[Attempt, Any]:
    """Convert a result of `attempt_text` back to the attempt and the content."""
    whole = json.loads(text)
    table = whole["attempt"]
    run, stage, number, token, sent = (table[key] for key in ("run", "stage", "round", "token", "sent"))
    images = {int(client): count for client, count in table["images"].items()}
    valid = all(isinstance(each, str) for each in (run, stage, token, sent)) and type(number) is int
    if not valid or not images or not all(type(count) is int and count > 0 for count in images.values()):
        raise UnreadableError("The attempt is malformed.")
    return Attempt(run, stage, number, token, sent, images), whole["content"]


def peers_table(peers: Mapping[int, Peer]) -> dict[str, Any]:
    """The sites of an attempt, by client, as a table that JSON can represent."""
    return {
        str(client): [peer.name, *(each.hex() for each in (*peer.keys, peer.signature, peer.registered))]
        for client, peer in peers.items()
    }


@guard()
def read_peers(content: Any) -> dict[int, Peer]:
    """Convert a result of `peers_table` back to the sites."""
    peers = {}
    for client, (name, sealing, masking, signature, registered) in content.items():
        keys = PublicKeys(_bytes(sealing, KEY_BYTES), _bytes(masking, KEY_BYTES))
        peers[int(client)] = Peer(str(name), keys, _bytes(signature), _bytes(registered))
    return peers


def sealed_table(sealed: Mapping[int, bytes]) -> dict[str, str]:
    """Bytes by client as a table that JSON can represent."""
    return {str(client): each.hex() for client, each in sealed.items()}


@guard()
def read_sealed(content: Any) -> dict[int, bytes]:
    """Convert a result of `sealed_table` back to bytes by client."""
    return {int(client): _bytes(each) for client, each in content.items()}


def pack_keys(keys: PublicKeys, signature: bytes) -> RecordDict:
    """Convert the public keys of a site and their signature to records."""
    return _reply([*(key.hex() for key in keys), signature.hex()])


@guard()
def unpack_keys(records: RecordDict) -> tuple[PublicKeys, bytes] | Failure:
    """Convert records of `pack_keys` back, or of a failure."""
    if failure := read_failure(records):
        return failure
    sealing, masking, signature = json.loads(read_fact(records, CONTENT, str))
    return PublicKeys(_bytes(sealing, KEY_BYTES), _bytes(masking, KEY_BYTES)), _bytes(signature)


def pack_shares(shares: Shares) -> RecordDict:
    """Convert the shares of a site to records."""
    commitments = {str(holder): [each.hex() for each in pair] for holder, pair in shares.commitments.items()}
    return _reply([sealed_table(shares.sealed), commitments, shares.seed.hex()])


@guard()
def unpack_shares(records: RecordDict) -> Shares | Failure:
    """Convert records of `pack_shares` back, or of a failure."""
    if failure := read_failure(records):
        return failure
    sealed, table, seed = json.loads(read_fact(records, CONTENT, str))
    commitments = {
        int(holder): (_bytes(pair, HASH_BYTES), _bytes(own, HASH_BYTES))
        for holder, (pair, own) in table.items()
    }
    return Shares(read_sealed(sealed), commitments, _bytes(seed, HASH_BYTES))


def pack_confirmation(signature: bytes) -> RecordDict:
    """Convert the signature of a site under the list of received vectors to records."""
    return _reply(signature.hex())


@guard()
def unpack_confirmation(records: RecordDict) -> bytes | Failure:
    """Convert records of `pack_confirmation` back, or of a failure."""
    if failure := read_failure(records):
        return failure
    return _bytes(json.loads(read_fact(records, CONTENT, str)))


def pack_revealed(revealed: Revealed) -> RecordDict:
    """Convert the shares that a site reveals to records."""
    return _reply([sealed_table(revealed.pair), sealed_table(revealed.own)])


@guard()
def unpack_revealed(records: RecordDict) -> Revealed | Failure:
    """Convert records of `pack_revealed` back, or of a failure."""
    if failure := read_failure(records):
        return failure
    pair, own = json.loads(read_fact(records, CONTENT, str))
    return Revealed(read_sealed(pair), read_sealed(own))


def _reply(content: Any) -> RecordDict:
    return RecordDict({FACTS: ConfigRecord({CONTENT: json.dumps(content)})})


def _bytes(text: str, length: int | None = None) -> bytes:
    found = bytes.fromhex(text)
    if len(found) > MAX_BYTES or length not in (None, len(found)):
        raise UnreadableError("A key or a share has another length than it must have.")
    return found
