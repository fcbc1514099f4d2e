"""Signs the messages of a server to its sites, and verifies the signatures of their replies."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from flwr.app import Message

from fedmcc.deployment.flower import signatures
from fedmcc.deployment.flower.signatures import Digests, ForgedError, Order
from fedmcc.deployment.server.book import ServerBook
from fedmcc.deployment.setup.certificates import CertifiedKey, load_public_key, load_server
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.errors import InputError
from fedmcc.runs.directory import Row


class Signer:
    """The keys of a federation at its server, for the messages of one run."""

    def __init__(self, operator: OperatorFolder, run: str, nodes: Mapping[int, str]) -> None:
        self.operator, self.run = operator, run
        self.names = dict(nodes)  # of the sites, by Flower's node id
        self._loaded: CertifiedKey | None = None
        self.book = ServerBook(operator.audit_book)

    def sign(self, messages: Sequence[Message]) -> list[Order]:
        """Sign messages to sites, each with content of its own; returns what their replies must answer."""
        server, digests = self._server(), Digests()  # the digests of arrays that the messages share
        orders = []
        for message in messages:
            order = self._order(message)
            signatures.sign_order(message.content, order, server, digests)
            orders.append(order)
        self.book.sent(
            server, list(zip(orders, [message.content for message in messages], strict=True)), digests
        )
        return orders

    def verify(self, reply: Message, order: Order) -> None:
        """Raise ForgedError unless the site to which this order was sent signed this reply to it."""
        if self.revoked(order.site):
            raise ForgedError(f"The key of site {order.site} was revoked.")
        digests = Digests()
        key = load_public_key(
            self.operator.public_key(order.site)
        )  # read again each time: the operator may revoke it during a run
        signatures.verify_reply(reply.content, order, key, digests)
        self.book.received(self._server(), order, reply.content, digests)

    def revoked(self, site: str) -> bool:
        """Whether the operator has revoked the key of a site."""
        return not self.operator.public_key(site).exists()

    def registered_key(self, site: str) -> bytes:
        """The public key of a site in OpenSSH's format; empty if it was revoked."""
        try:
            return self.operator.public_key(site).read_bytes()
        except FileNotFoundError:
            return b""

    def record_fault(self, order: Order, reason: str) -> None:
        """Record that an order has no reply that can be used."""
        self.book.fault(self._server(), order, reason)

    def record_round(self, row: Row) -> None:
        """Record whose updates a round averaged, refused and missed."""
        self.book.round(self._server(), self.run, row)

    def registered(self) -> dict[str, int]:
        """Flower's node id of each site, read again each time: the operator may add sites during a run."""
        file = self.operator.nodes_file
        nodes: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        self.names |= {node: name for name, node in nodes.items()}
        return nodes

    @property
    def nodes(self) -> set[int]:
        """The nodes whose keys are not revoked."""
        return {node for node, name in self.names.items() if not self.revoked(name)}

    def _order(self, message: Message) -> Order:
        metadata, now = message.metadata, time.time()
        stage, number = signatures.stage_and_round(message.content)
        return Order(
            kind=metadata.message_type,
            run=self.run,
            site=self.names[metadata.dst_node_id],
            node=str(metadata.dst_node_id),
            stage=stage,
            round=number,
            nonce=secrets.token_hex(16),
            created=round(1000 * now),
            expires=round(1000 * (now + metadata.ttl)),
        )

    def _server(self) -> CertifiedKey:
        """The server's key, read again each time: the operator may renew the certificate during a run."""
        try:
            self._loaded = load_server(self.operator.key, self.operator.certificate)
        except InputError:  # while the operator renews them, the two files do not match for a moment
            if self._loaded is None:
                raise
        end = self._loaded.certificate.not_valid_after_utc
        if end <= datetime.now(UTC):
            raise InputError(
                f"The server's certificate expired on {end:%Y-%m-%d %H:%M} UTC: run `fedmcc federation renew "
                f"{self.operator.path}` and start the server again; the run then continues."
            )
        return self._loaded
