"""The audit book of a server: what it sent, what it received, and which updates each round accepted."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedmcc.deployment.audit import Book, content_fields, failure_of, order_fields
from fedmcc.deployment.flower.signatures import Digests, Order
from fedmcc.deployment.setup.certificates import CertifiedKey, der
from fedmcc.runs.directory import Row

OWNER = "server"


class ServerBook:
    """The book of a server, whose key changes when the operator renews its certificate."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._written = b""  # the certificate that this process has written to the book last

    def sent(
        self, server: CertifiedKey, messages: Sequence[tuple[Order, RecordDict]], digests: Digests
    ) -> None:
        """Record messages to sites."""
        lines = [
            {"event": "sent", "site": order.site, **order_fields(order, content, digests)}
            for order, content in messages
        ]
        self._append(server, lines)

    def received(self, server: CertifiedKey, order: Order, content: RecordDict, digests: Digests) -> None:
        """Record the reply that a site signed."""
        reason = failure_of(content)
        outcome = {"outcome": "refused", "reason": reason} if reason else {"outcome": "answered"}
        about = {"site": order.site, "nonce": order.nonce, **content_fields(content, digests), **outcome}
        self._append(server, [{"event": "received", **about}])

    def fault(self, server: CertifiedKey, order: Order, reason: str) -> None:
        """Record that a message has no reply that can be used."""
        self._append(server, [{"event": "fault", "site": order.site, "nonce": order.nonce, "reason": reason}])

    def round(self, server: CertifiedKey, run: str, row: Row) -> None:
        """Record whose updates a round averaged, refused and missed, from its row of metrics."""
        names = row["sites"]
        line = {
            "event": "round",
            "run": run,
            "stage": row["stage"],
            "round": row["round"],
            "accepted": [names[str(client)] for client in row["participants"]],
            "refused": {names[str(each["client"])]: each["reason"] for each in row.get("refused", ())},
            "dropped": {names[client]: reason for client, reason in row.get("reasons", {}).items()},
        }
        self._append(server, [line])

    def _append(self, server: CertifiedKey, lines: Sequence[Mapping[str, Any]]) -> None:
        certificate = der(server.certificate)
        if certificate != self._written:
            new = {"event": "certificate", "certificate": b64encode(certificate).decode()}
            lines, self._written = [new, *lines], certificate
        Book(self.file, OWNER, server.key).append(*lines)
