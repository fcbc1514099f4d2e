"""The identity of a site: it accepts only orders that the server signed for it, and signs its replies.

The ledger on the site's disk makes an order count once, and each task keep to the recipe of its run; the
audit book records orders and replies.
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from fedmcc.deployment.audit import Book, content_fields, failure_of, order_fields
from fedmcc.deployment.flower import signatures
from fedmcc.deployment.flower.signatures import Digests, ForgedError, Order, Received
from fedmcc.deployment.recipes import RESOLVED_KEYS, agreed_options
from fedmcc.deployment.setup.certificates import load_certificate, load_site_key
from fedmcc.deployment.setup.layout import PRIVATE_MODE, SiteFolder
from fedmcc.storage.atomic_files import try_lock, write_atomically

log = logging.getLogger(__name__)

MAX_ORDERS = 1000  # nonces of orders that have not expired; older orders are then refused
MAX_RECIPES = 20  # of the runs that greeted this site last
POLL_SECONDS = 0.05  # between two attempts to get the lock


@dataclass(frozen=True)
class SiteIdentity:
    """The folder that a site received from the operator, and Flower's id of the site."""

    folder: SiteFolder
    node: int

    def receive(self, message: Message) -> Received:
        """The order in a message; raises ForgedError if it is not a new order of the server to this site."""
        name, server = self.folder.read()
        authority = load_certificate(self.folder.authority_certificate)
        digests = Digests()
        received = signatures.verify_order(message.content, authority, _host(server), digests)
        signatures.check_receiver(received.order, message.metadata.message_type, name, self.node)
        self.ledger.add(received.order)
        about = order_fields(received.order, message.content, digests)
        self._book.append({"event": "received", **about})
        return received

    def ignore(self, reason: str) -> None:
        """Record that a message was ignored; nothing of it is recorded."""
        self._book.append({"event": "ignored", "reason": reason})

    def sign(self, content: RecordDict, order: Order) -> None:
        """Sign a reply to an order, and record it."""
        digests = Digests()
        signatures.sign_reply(content, order, load_site_key(self.folder.key), digests)
        reason = failure_of(content)
        outcome = {"outcome": "refused", "reason": reason} if reason else {"outcome": "answered"}
        about = {"nonce": order.nonce, **content_fields(content, digests), **outcome}
        self._book.append({"event": "replied", **about})

    @property
    def _book(self) -> Book:
        name, _ = self.folder.read()
        return Book(self.folder.audit_book, name, load_site_key(self.folder.key))

    @property
    def ledger(self) -> "Ledger":
        """The orders that this site has received."""
        return Ledger(self.folder.ledger)


@dataclass(frozen=True)
class Ledger:
    """The orders that a site has received, and the recipes of the runs that greeted it, in one file."""

    file: Path

    def add(self, order: Order) -> None:
        """Store that this order was received; raises ForgedError if it was received before.

        If too many orders are unexpired, the oldest are dropped, and all that are not newer are refused.
        """
        with self._changed() as content:
            now, orders = round(1000 * time.time()), content["orders"]
            if order.nonce in orders or order.created <= content["refused_until"]:
                raise ForgedError("The message was received before.")
            orders[order.nonce] = [order.created, order.expires]
            current = [pair for pair in orders.items() if pair[1][1] >= now]
            current.sort(key=lambda pair: pair[1])
            dropped, kept = current[:-MAX_ORDERS], current[-MAX_ORDERS:]
            content["refused_until"] = max([content["refused_until"], *(pair[1][0] for pair in dropped)])
            content["orders"] = dict(kept)

    def agree(self, run: str, recipe: str) -> None:
        """Store the recipe with which the server greeted this site for a run."""
        with self._changed() as content:
            recipes = content["recipes"]
            recipes.pop(run, None)
            content["recipes"] = dict([*recipes.items(), (run, recipe)][-MAX_RECIPES:])

    def recipe(self, run: str) -> str | None:
        """The recipe with which the server greeted this site for a run; None if it is not known."""
        recipe: str | None = self._read()["recipes"].get(run)
        return recipe

    def differences(self, run: str, config: str) -> list[str]:
        """The options of a task that the server cannot have derived from the recipe of the run.

        A run without a recipe, for instance after the ledger was deleted, keeps to the options of this task.
        """
        recipe = self._read()["recipes"].get(run)
        if recipe is None:
            self.agree(run, config)
            return []
        agreed, ordered = agreed_options(recipe), agreed_options(config)
        changed = {key for key in agreed.keys() | ordered.keys() if agreed.get(key) != ordered.get(key)}
        return sorted(changed - {key for key in RESOLVED_KEYS if key not in agreed})

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """The content of the file, which is written at the end of the block unless it raises."""
        with self.file.with_suffix(".lock").open("w") as lock:
            while not try_lock(lock.fileno()):  # another process of the site, for milliseconds
                time.sleep(POLL_SECONDS)
            content = self._parsed()
            if content is None:  # written at once: later reads would refuse all messages until then
                log.warning("%s is damaged and starts anew: messages sent until now are refused.", self.file)
                content = _empty(refused_until=round(1000 * time.time()))
                write_atomically(self.file, json.dumps(content), PRIVATE_MODE)
            yield content
            write_atomically(self.file, json.dumps(content), PRIVATE_MODE)

    def _read(self) -> dict[str, Any]:
        """The content of the file, without any recipe if it is damaged."""
        content = self._parsed()
        return _empty() if content is None else content

    def _parsed(self) -> dict[str, Any] | None:
        """The content of the file; None if it is damaged."""
        if not self.file.exists():
            return _empty()
        try:
            content: dict[str, Any] = json.loads(self.file.read_text())
            return {key: content[key] for key in _empty()}
        except (ValueError, KeyError, TypeError):
            return None


def _empty(refused_until: int = 0) -> dict[str, Any]:
    """A ledger without orders; those created until this time, in milliseconds, are refused."""
    return {"refused_until": refused_until, "orders": {}, "recipes": {}}


def _host(server: str) -> str:
    return server.rpartition(":")[0].strip("[]")
