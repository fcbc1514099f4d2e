"""Audit books: append-only files in which server and sites record their messages.

Every line contains the SHA-256 of the line before it and a signature of its writer, so that a line that was
changed, removed or inserted later is found. Pure functions describe messages for both sides.
"""

import json
import os
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmcc.deployment.flower.records import FACTS, NUMBERS, WEIGHTS
from fedmcc.deployment.flower.signatures import Digests, Order, PrivateKey, PublicKey, digest, sign_line
from fedmcc.deployment.flower.signatures import is_signed_line as is_signed
from fedmcc.deployment.recipes import recipe_hash
from fedmcc.deployment.setup.layout import PRIVATE_MODE
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import try_lock

START = "0" * 64  # in place of the hash of a line before the first
POLL_SECONDS = 0.05  # between two attempts to get the lock
TAIL_BYTES = 1 << 16  # read from the end of a book, to find its last line

Fields = dict[str, Any]
hash_of_recipe = lru_cache(maxsize=16)(recipe_hash)  # all tasks of a run have the same recipe


class Entry(NamedTuple):
    """A line of a book."""

    number: int  # of the line, from 1
    fields: Fields


@dataclass(frozen=True)
class Book:
    """A book that its owner, "server" or the name of a site, can append to."""

    file: Path
    owner: str
    key: PrivateKey

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Append lines and flush them to disk; an incomplete line, which a crash left behind, is removed."""
        with self.file.with_suffix(".lock").open("w") as lock:
            while not try_lock(lock.fileno()):  # another process of the owner, for milliseconds
                time.sleep(POLL_SECONDS)
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
            with os.fdopen(handle, "r+b") as file:
                last = _last_line(file.fileno())
                file.seek(0, os.SEEK_END)
                for entry in entries:
                    last = self._line(entry, last)
                    file.write(last + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def _line(self, entry: Mapping[str, Any], last: bytes) -> bytes:
        head = {"owner": self.owner, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        fields = {**head, **entry, "previous": sha256(last).hexdigest() if last else START}
        signature = b64encode(sign_line(_encoded(fields), self.key)).decode()
        return _encoded({**fields, "signature": signature})


def read_entries(file: Path) -> list[bytes]:
    """The lines of a book; raises InputError if it cannot be read."""
    try:
        return file.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"Cannot read the audit book {file}: {error.strerror}.") from None


def check_lines(
    lines: Sequence[bytes], owner: str, keys: Sequence[PublicKey]
) -> tuple[list[Entry], list[str]]:
    """The genuine lines of a book, and a sentence about every other line; the owner has one of the keys."""
    entries: list[Entry] = []
    faults: list[str] = []
    previous: str | None = START
    for number, line in enumerate(lines, start=1):
        fields = parse_line(line)
        if fields is None or fields.get("owner") != owner:
            faults.append(f"Line {number} of the book of {owner} is damaged.")
        elif not any(_is_genuine(fields, key) for key in keys):
            faults.append(f"Line {number} of the book of {owner} was changed: its signature does not match.")
        else:
            if previous is not None and fields.get("previous") != previous:
                faults.append(f"Line {number} of the book of {owner} does not follow the line before it.")
            entries.append(Entry(number, fields))
            previous = sha256(line).hexdigest()
            continue
        previous = None  # the next line cannot be compared with a changed one
    return entries, faults


def parse_line(line: bytes) -> Fields | None:
    """The fields of a line; None if it is not exactly as `Book` writes lines."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and _encoded(fields) == line else None


def order_fields(order: Order, content: RecordDict, digests: Digests) -> Fields:
    """What both sides record about a message of the server."""
    place = {key: getattr(order, key) for key in ("kind", "run", "stage", "round", "nonce")}
    return {**place, "recipe": _recipe(content), **content_fields(content, digests)}


def content_fields(content: RecordDict, digests: Digests) -> Fields:
    """Hashes of the weights and of the whole content of a message, and the bytes of its arrays."""
    whole = digest(content, digests).hex()
    arrays = [
        array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values()
    ]
    weights = content.get(WEIGHTS)
    numbers = weights.get(NUMBERS) if isinstance(weights, ArrayRecord) else None
    named = digests[id(numbers)].hex() if numbers is not None else ""
    return {"weights": named, "content": whole, "bytes": sum(len(array.data) for array in arrays)}


def failure_of(content: RecordDict) -> str:
    """The reason of a site that could not do its task, safe for logs; empty if it did."""
    facts = content.get(FACTS)
    reason = facts.get("failure", "") if isinstance(facts, ConfigRecord) else ""
    return "".join(c for c in str(reason)[:200] if c.isprintable())


def _recipe(content: RecordDict) -> str:
    """The hash of the recipe in a greeting or a task; empty for other messages."""
    facts = content.get(FACTS)
    text = facts.get("recipe") or facts.get("config") if isinstance(facts, ConfigRecord) else None
    try:
        return hash_of_recipe(text) if isinstance(text, str) else ""
    except ValueError:
        return ""


def _is_genuine(fields: Fields, key: PublicKey) -> bool:
    unsigned = {name: value for name, value in fields.items() if name != "signature"}
    try:
        signature = b64decode(str(fields.get("signature", "")), validate=True)
    except Base64Error:
        return False
    return is_signed(_encoded(unsigned), signature, key)


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _last_line(file: int) -> bytes:
    """The last complete line of an open book, empty if there is none; what follows it is cut off."""
    size = os.fstat(file).st_size
    start = max(0, size - TAIL_BYTES)
    tail = os.pread(file, size - start, start)
    complete = tail.rfind(b"\n") + 1
    if start + complete < size:
        os.ftruncate(file, start + complete)
    return tail[:complete].removesuffix(b"\n").rpartition(b"\n")[2]
