"""Audit books: a line that was changed, removed or inserted is named, and so are books that disagree."""

import json
import threading
from itertools import islice

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.deployment.audit import Book, Entry, check_lines, parse_line, read_entries
from fedmcc.deployment.server.audit import audit, compare
from fedmcc.deployment.setup.certificates import load_site_key

KEY, OTHER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
COUNT = 5


@pytest.fixture
def book(tmp_path):
    made = Book(tmp_path / "audit.jsonl", "north", KEY)
    made.append({"event": "sent", "round": 0})
    made.append(*({"event": "sent", "round": number} for number in range(1, COUNT)))
    return made


def faults(lines, keys=(KEY,)):
    return check_lines(lines, "north", [key.public_key() for key in keys])[1]


def test_every_line_of_an_untouched_book_is_genuine(book):
    entries, found = check_lines(read_entries(book.file), "north", [KEY.public_key()])
    assert (len(entries), found) == (COUNT, [])
    assert [entry.fields["round"] for entry in entries] == list(range(COUNT))
    assert book.file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("line", range(COUNT))
@pytest.mark.parametrize(
    ("old", "new"), [(b'"round":', b'"round":1'), (b'"sent"', b'"lost"'), (b'"', b"'"), (b"{", b"{ ")]
)
def test_a_changed_line_is_named_and_no_other(line, old, new, book):
    lines = read_entries(book.file)
    lines[line] = lines[line].replace(old, new, 1)
    (found,) = faults(lines)
    assert found.startswith(f"Line {line + 1} of the book of north ")


@pytest.mark.parametrize("line", range(COUNT - 1))
def test_the_line_after_a_removed_one_is_named(line, book):
    lines = read_entries(book.file)
    del lines[line]
    assert faults(lines) == [f"Line {line + 1} of the book of north does not follow the line before it."]


def test_lines_in_another_order_are_named(book):
    lines = read_entries(book.file)
    lines[1], lines[2] = lines[2], lines[1]
    assert [found.split()[1] for found in faults(lines)] == ["2", "3", "4"]


def test_a_line_with_the_key_of_another_is_named(book):
    Book(book.file, "north", OTHER).append({"event": "sent", "round": COUNT})
    (found,) = faults(read_entries(book.file))
    assert found == f"Line {COUNT + 1} of the book of north was changed: its signature does not match."
    assert faults(read_entries(book.file), (KEY, OTHER)) == []  # after a change of the key


def test_a_line_of_another_book_is_named(book):
    Book(book.file, "south", KEY).append({"event": "sent"})
    assert faults(read_entries(book.file)) == [f"Line {COUNT + 1} of the book of north is damaged."]


def test_a_line_that_a_crash_cut_off_is_removed_by_the_next(book):
    whole = book.file.read_bytes()
    book.file.write_bytes(whole[:-20])
    book.append({"event": "sent", "round": 9})
    lines = read_entries(book.file)
    assert faults(lines) == []
    assert [parse_line(line)["round"] for line in lines] == [0, 1, 2, 3, 9]


def test_a_book_that_several_processes_write_stays_a_chain(book):
    threads = [threading.Thread(target=book.append, args=({"event": "sent"},)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_entries(book.file)) == COUNT + 8
    assert faults(read_entries(book.file)) == []


ORDER = {"nonce": "1", "kind": "train", "run": "r", "stage": "s", "round": 1, "recipe": "x", "weights": "w"}
ORDER |= {"content": "c", "bytes": 3}
REPLY = {"nonce": "1", "weights": "v", "content": "d", "bytes": 2, "outcome": "answered"}
SERVER = [{"event": "sent", "site": "a", **ORDER}, {"event": "received", "site": "a", **REPLY}]
SITE = [{"event": "received", **ORDER}, {"event": "replied", **REPLY}]


def compared(server, site):
    books = [[Entry(number, fields) for number, fields in enumerate(book, 1)] for book in (server, site)]
    return list(compare("a", *books))


def test_books_that_agree_have_no_faults():
    assert compared(SERVER, SITE) == []
    assert compared(SERVER[:1], []) == []  # the message was lost
    assert compared(SERVER[:1], SITE) == []  # the reply was lost


def test_books_that_disagree_are_named_with_their_lines():
    other = [{**SITE[0], "recipe": "y"}, {**SITE[1], "bytes": 9}]
    pair = "Line {0} of the book of a and line {0} of the book of server differ in {1}."
    assert compared(SERVER, other) == [pair.format(1, "recipe"), pair.format(2, "bytes")]


def test_a_message_that_only_one_book_has_is_named():
    assert compared([], SITE[:1]) == ["Line 1 of the book of a: the book of server has no such message."]
    assert compared(SERVER, SITE[:1]) == ["Line 2 of the book of server: the book of a has no such reply."]


def rewrite(book, key, change):
    """Write a book again as the owner of its key can: with valid signatures and a valid chain."""
    lines = [parse_line(line) for line in read_entries(book)]
    book.unlink()
    for fields in map(change, lines):
        own = {name: value for name, value in fields.items() if name not in ("previous", "signature")}
        Book(book, own["owner"], key).append(own)


@pytest.mark.slow
def test_a_run_leaves_books_that_agree_and_a_lie_of_either_side_is_named(three):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    operator, file = federation.operator, federation.operator.site("b").config_file
    file.write_text(file.read_text() + '[policy]\nmethods = ["mcc"]\n')
    list(islice(rounds, 1))
    report = audit(operator)
    assert report.faults == ()
    assert report.lines.keys() == {"The server", "Site a", "Site b", "Site c"}
    lines = [json.loads(line) for line in read_entries(operator.audit_book)]
    accepted = [(line["accepted"], line["dropped"]) for line in lines if line["event"] == "round"]
    refusal = {"b": "The policy of the site does not allow the method fedema."}
    assert accepted == [(["a", "b", "c"], {}), (["a", "c"], refusal)]
    tasks = [line for line in lines if line["event"] == "sent" and line["kind"] == "train"]
    assert len({line["recipe"] for line in lines if line["event"] == "sent"}) == 1  # greetings and tasks
    assert [line["bytes"] for line in tasks[:3]] == [federation.rows()[0]["bytes"]["0"][0]] * 3

    own, key = operator.site("a").audit_book, load_site_key(operator.site("a").key)
    honest = own.read_bytes()
    rewrite(own, key, lambda line: {**line, "weights": "0"} if line["event"] == "replied" else line)
    assert "differ in weights" in audit(operator).faults[0]
    own.write_bytes(honest)
    text = operator.audit_book.read_text().splitlines()
    text[3] = text[3].replace('"site":"', '"site":"x')
    operator.audit_book.write_text("\n".join(text) + "\n")
    result = CliRunner().invoke(app, ["federation", "audit", str(operator.path)])
    assert "Line 4 of the book of server was changed" in " ".join(audit(operator).faults)
    assert result.exit_code != 0
