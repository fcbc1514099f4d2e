"""Signatures of messages: the server signs its orders to a site, and the site signs its replies.

Flower checks who sends a request, but not which sender a message names: without signatures, any site could
write messages of the server or of another site. Pure functions on the records of a message.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from struct import pack
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import Certificate, load_der_x509_certificate
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmcc.deployment import PROTOCOL
from fedmcc.deployment.flower.records import FACTS, SIGNATURE, UnreadableError
from fedmcc.deployment.messages import Peer
from fedmcc.deployment.setup.certificates import CertifiedKey, der, is_certified, parse_public_key
from fedmcc.federation.secure_aggregation.participant import PublicKeys

# What a signature is for: none can stand for another.
ORDER, REPLY, LINE, KEYS, SURVIVORS = "order", "reply", "line", "keys", "survivors"
ALGORITHM = ec.ECDSA(hashes.SHA384())
LINE_FORMAT = 2  # of audit books, which outlive a version of the messages
CLOCK_TOLERANCE = 600_000  # milliseconds by which the clock of a site may be behind the server's

PublicKey = ec.EllipticCurvePublicKey
PrivateKey = ec.EllipticCurvePrivateKey
Digests = dict[int, bytes]  # SHA-256 of the data of arrays, by the id of the array


class ForgedError(UnreadableError):
    """The message is not from whom it says, or not for this receiver, or was received before."""


class OutdatedError(UnreadableError):
    """The message is genuine, but it or the server's certificate is not valid at this time."""


class Order(NamedTuple):
    """What the server signs, besides the content, in every message to a site; replies repeat it."""

    kind: str  # Flower's type of the message
    run: str  # unique id of the run
    site: str
    node: str  # Flower's id of the site; a text, since Flower's records have no unsigned 64-bit numbers
    stage: str  # empty if the message is not a task
    round: int
    nonce: str  # random, and never used twice
    created: int  # milliseconds since 1970
    expires: int


class Received(NamedTuple):
    """A genuine order, and the certificate of the server that signed it."""

    order: Order
    certificate: Certificate


def stage_and_round(content: RecordDict) -> tuple[str, int]:
    """The stage and the round that the content of a task names; empty and 0 for other messages."""
    facts = content.get(FACTS)
    stage, number = (facts.get("stage"), facts.get("round")) if isinstance(facts, ConfigRecord) else ("", 0)
    return (stage, number) if isinstance(stage, str) and type(number) is int else ("", 0)


def sign_order(content: RecordDict, order: Order, server: CertifiedKey, digests: Digests) -> None:
    """Add the order, its signature and the server's certificate; `digests` caches those of shared arrays."""
    signature = server.key.sign(statement(ORDER, order, digest(content, digests)), ALGORITHM)
    facts = {**order._asdict(), "certificate": der(server.certificate), "signature": signature}
    content[SIGNATURE] = ConfigRecord(facts)


def verify_order(
    content: RecordDict, authority: Certificate, host: str, digests: Digests | None = None
) -> Received:
    """The order in a message from a server that the authority certified for this host, else ForgedError.

    Neither the receiver nor the time is checked here: see `check_receiver` and `check_time`.
    """
    facts = _signature_facts(content)
    order = Order(*(_get(facts, key, kind) for key, kind in Order.__annotations__.items()))
    try:
        certificate = load_der_x509_certificate(_get(facts, "certificate", bytes))
    except ValueError:
        raise ForgedError("The certificate of the message is damaged.") from None
    if not is_certified(certificate, authority, host):
        raise ForgedError("The message has no certificate of the authority that this site trusts.")
    _verify(
        certificate.public_key(),
        facts,
        statement(ORDER, order, digest(content, {} if digests is None else digests)),
    )
    return Received(order, certificate)


def check_receiver(order: Order, kind: str, site: str, node: int) -> None:
    """Raise ForgedError if a genuine message is of another kind, or meant for another site."""
    if (order.kind, order.site, order.node) != (kind, site, str(node)):
        raise ForgedError("The message is meant for another site or purpose.")


def check_time(received: Received, now: float) -> None:
    """Raise OutdatedError if the order or the certificate is not valid at this time (in `time.time()`)."""
    order, certificate = received
    moment = datetime.fromtimestamp(now, UTC)
    if moment > certificate.not_valid_after_utc:
        end = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
        raise OutdatedError(
            f"The server's certificate expired on {end} UTC: renew it with `fedmcc federation renew`."
        )
    if moment < certificate.not_valid_before_utc or order.created > 1000 * now + CLOCK_TOLERANCE:
        raise OutdatedError("The message is from the future: correct the clocks of site and server.")
    if 1000 * now > order.expires:
        raise OutdatedError("The task expired before it was started.")


def sign_reply(content: RecordDict, order: Order, key: PrivateKey, digests: Digests | None = None) -> None:
    """Add the signature of a site to its reply to an order."""
    signature = key.sign(
        statement(REPLY, order, digest(content, {} if digests is None else digests)), ALGORITHM
    )
    answered = {"site": order.site, "run": order.run, "nonce": order.nonce}
    content[SIGNATURE] = ConfigRecord({**answered, "signature": signature})


def verify_reply(content: RecordDict, order: Order, key: PublicKey, digests: Digests | None = None) -> None:
    """Raise ForgedError unless the site with this key signed this content as its reply to this order."""
    facts = _signature_facts(content)
    if _get(facts, "site", str) != order.site:
        raise ForgedError("The reply is signed by another site.")
    if _get(facts, "run", str) != order.run:
        raise ForgedError("The reply belongs to another run.")
    if _get(facts, "nonce", str) != order.nonce:
        raise ForgedError("The reply answers another message.")
    _verify(key, facts, statement(REPLY, order, digest(content, {} if digests is None else digests)))


def sign_line(line: bytes, key: PrivateKey) -> bytes:
    """The signature of a line of an audit book."""
    return key.sign(_line_statement(line), ALGORITHM)


def is_signed_line(line: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether the owner of this key signed this line of an audit book."""
    try:
        key.verify(signature, _line_statement(line), ALGORITHM)
    except InvalidSignature:
        return False
    return True


def sign_keys(context: bytes, site: str, keys: PublicKeys, key: PrivateKey) -> bytes:
    """The signature of a site under its public keys of an attempt at a round."""
    return key.sign(_keys_statement(context, site, keys), ALGORITHM)


def are_signed_keys(context: bytes, peer: Peer) -> bool:
    """Whether the registered key of a site signed its public keys of this attempt."""
    return _is_signed(peer, peer.signature, _keys_statement(context, peer.name, peer.keys))


def sign_survivors(context: bytes, site: str, received: Collection[int], key: PrivateKey) -> bytes:
    """The signature of a site under the list of clients whose vectors arrived in an attempt at a round."""
    return key.sign(_survivors_statement(context, site, received), ALGORITHM)


def are_signed_survivors(context: bytes, peer: Peer, received: Collection[int], signature: bytes) -> bool:
    """Whether the registered key of a site signed this list of clients in this attempt."""
    return _is_signed(peer, signature, _survivors_statement(context, peer.name, received))


def _is_signed(peer: Peer, signature: bytes, signed: bytes) -> bool:
    key = parse_public_key(peer.registered)
    try:
        if key is not None:
            key.verify(signature, signed, ALGORITHM)
    except InvalidSignature:
        return False
    return key is not None


def certified_key(certificate: bytes, authority: Certificate, host: str) -> PublicKey | None:
    """The key of a server's certificate in DER format; None if the authority has not issued it."""
    try:
        loaded = load_der_x509_certificate(certificate)
    except ValueError:
        return None
    key = loaded.public_key()
    return key if is_certified(loaded, authority, host) and isinstance(key, PublicKey) else None


def _line_statement(line: bytes) -> bytes:
    return b"".join(_prefixed(field) for field in (f"fedmcc {LINE_FORMAT}".encode(), LINE.encode(), line))


def _keys_statement(context: bytes, site: str, keys: PublicKeys) -> bytes:
    fields = (f"fedmcc {PROTOCOL}".encode(), KEYS.encode(), context, site.encode(), *keys)
    return b"".join(_prefixed(field) for field in fields)


def _survivors_statement(context: bytes, site: str, received: Collection[int]) -> bytes:
    clients = ",".join(map(str, sorted(set(received))))
    fields = (f"fedmcc {PROTOCOL}", SURVIVORS, site, clients)
    return b"".join(_prefixed(field.encode()) for field in fields) + _prefixed(context)


def statement(purpose: str, order: Order, content: bytes) -> bytes:
    """The bytes that are signed: the length of each field in eight bytes, and the field."""
    fields = (f"fedmcc {PROTOCOL}", purpose, *map(str, order))
    return b"".join(_prefixed(field.encode()) for field in fields) + _prefixed(content)


def digest(content: RecordDict, digests: Digests) -> bytes:
    """SHA-256 of all records except the signature: of every name, type and value in them."""
    total = sha256()
    for name, record in sorted(content.items()):
        if name != SIGNATURE:
            for field in (name, *_fields(record, digests)):
                total.update(_prefixed(field if isinstance(field, bytes) else field.encode()))
    return total.digest()


def _fields(record: Any, digests: Digests) -> Iterator[bytes | str]:
    """The kind and the length of a record, then what its entries consist of, sorted by name."""
    yield from (type(record).__name__, str(len(record)))
    for name, value in sorted(record.items()):
        yield name
        if isinstance(record, ArrayRecord):
            yield from (value.dtype, str(tuple(value.shape)), value.stype)
            if id(value) not in digests:
                digests[id(value)] = sha256(value.data).digest()
            yield digests[id(value)]
        elif isinstance(value, list):
            yield f"list {len(value)}"
            for each in value:
                yield from _value(each)
        else:
            yield from _value(value)


def _value(value: object) -> tuple[str, bytes]:
    """A value of a record as its type and its bytes."""
    if isinstance(value, bytes):
        return "bytes", value
    encoded = pack(">d", value) if isinstance(value, float) else str(value).encode()
    return type(value).__name__, encoded


def _prefixed(field: bytes) -> bytes:
    return len(field).to_bytes(8, "big") + field


def _signature_facts(content: RecordDict) -> ConfigRecord:
    facts = content.get(SIGNATURE)
    if not isinstance(facts, ConfigRecord):
        raise ForgedError("The message is not signed.")
    return facts


def _get(facts: ConfigRecord, key: str, expected: type) -> Any:
    value = facts.get(key)
    if type(value) is not expected:
        raise ForgedError("The signature of the message is damaged.")
    return value


def _verify(key: object, facts: ConfigRecord, signed: bytes) -> None:
    try:
        if isinstance(key, PublicKey):
            key.verify(_get(facts, "signature", bytes), signed, ALGORITHM)
            return
    except InvalidSignature:
        pass
    raise ForgedError("The signature of the message does not match its content.")
