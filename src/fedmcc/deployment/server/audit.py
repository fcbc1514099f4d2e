"""Verifies the audit books of a federation: each by itself, and those of the sites against the server's."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmcc.deployment.audit import Entry, check_lines, parse_line, read_entries
from fedmcc.deployment.flower.signatures import PublicKey, certified_key
from fedmcc.deployment.server.book import OWNER
from fedmcc.deployment.setup.certificates import load_certificate, load_public_key
from fedmcc.deployment.setup.create import old_keys
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.errors import InputError

ORDER_FIELDS = ("kind", "run", "stage", "round", "recipe", "weights", "content", "bytes")
REPLY_FIELDS = ("weights", "content", "bytes", "outcome")

Entries = Mapping[str, Entry]  # by the nonce of the message


class AuditReport(NamedTuple):
    """The number of lines in each book, and a sentence about everything that is wrong."""

    lines: dict[str, int]
    faults: tuple[str, ...]


def audit(operator: OperatorFolder, books: Sequence[Path] = ()) -> AuditReport:
    """Verify the server's book and the books of sites: those given, else those in the sites' folders."""
    spec, lines = operator.read_spec(), read_entries(operator.audit_book)
    entries, faults = check_lines(lines, OWNER, _server_keys(operator, lines))
    faults += _uncovered_rounds(entries)
    counts = {"The server": len(lines)}
    for book in books or [file for name in spec.sites if (file := operator.site(name).audit_book).exists()]:
        site_lines = read_entries(book)
        site = _owner(book, site_lines)
        own, own_faults = check_lines(site_lines, site, _site_keys(operator, site))
        faults += [*own_faults, *compare(site, entries, own)]
        counts[f"Site {site}"] = len(site_lines)
    return AuditReport(counts, tuple(faults))


def compare(site: str, server: Sequence[Entry], own: Sequence[Entry]) -> Iterator[str]:
    """Where the genuine lines of a site contradict those of the server, as sentences."""
    about = [entry for entry in server if entry.fields.get("site") == site]
    sent, replies = _by_nonce(about, "sent"), _by_nonce(about, "received")
    for nonce, entry in _by_nonce(own, "received").items():
        yield from _difference(site, entry, sent.get(nonce), ORDER_FIELDS)
    replied = _by_nonce(own, "replied")
    for nonce, entry in replies.items():
        if nonce in replied:
            yield from _difference(site, replied[nonce], entry, REPLY_FIELDS)
        else:
            yield f"Line {entry.number} of the book of {OWNER}: the book of {site} has no such reply."


def _difference(site: str, own: Entry, other: Entry | None, fields: Sequence[str]) -> Iterator[str]:
    if other is None:
        yield f"Line {own.number} of the book of {site}: the book of {OWNER} has no such message."
        return
    different = [field for field in fields if own.fields.get(field) != other.fields.get(field)]
    if different:
        yield (
            f"Line {own.number} of the book of {site} and line {other.number} of the book of {OWNER} "
            f"differ in {', '.join(different)}."
        )


def _uncovered_rounds(server: Sequence[Entry]) -> list[str]:
    """Rounds that count the update of a site from which the server has recorded none."""
    sent, replies = _by_nonce(server, "sent"), _by_nonce(server, "received")
    received = {
        tuple(sent[nonce].fields.get(key) for key in ("site", "run", "stage", "round"))
        for nonce, reply in replies.items()
        if nonce in sent and reply.fields.get("outcome") == "answered"
    }
    return [
        f"Line {number} of the book of {OWNER} counts an update of {site} that the book has not received."
        for number, fields in server
        if fields.get("event") == "round"
        for site in fields.get("accepted", ())
        if (site, fields.get("run"), fields.get("stage"), fields.get("round")) not in received
    ]


def _by_nonce(entries: Iterable[Entry], event: str) -> Entries:
    return {str(entry.fields.get("nonce")): entry for entry in entries if entry.fields.get("event") == event}


def _server_keys(operator: OperatorFolder, lines: Sequence[bytes]) -> list[PublicKey]:
    """The keys of the certificates in the server's book that the authority has issued."""
    authority, host = load_certificate(operator.authority_certificate), operator.read_spec().host
    parsed = [fields for line in lines if (fields := parse_line(line)) is not None]
    stored = [fields["certificate"] for fields in parsed if fields.get("event") == "certificate"]
    keys = [certified_key(_decoded(text), authority, host) for text in dict.fromkeys(map(str, stored))]
    return [key for key in keys if key is not None]


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        return b""


def _site_keys(operator: OperatorFolder, site: str) -> list[PublicKey]:
    """The key of a site, and those that it had before."""
    paths = [path for path in (operator.public_key(site), *old_keys(operator, site)) if path.exists()]
    return [load_public_key(path) for path in paths]


def _owner(book: Path, lines: Sequence[bytes]) -> str:
    """The site whose book this is, according to its first line that can be read."""
    owners = (fields.get("owner") for line in lines if (fields := parse_line(line)) is not None)
    owner = next((owner for owner in owners if isinstance(owner, str)), None)
    if owner is None:
        raise InputError(f"{book} is not the audit book of a site: give the file audit.jsonl of its folder.")
    return owner
