"""Log files of Flower's programs."""

import logging
from pathlib import Path

from fedmcc.deployment.flower.logs import LINE_FORMAT, last_error, message_of, rotate_log, shorten_log


def test_a_log_without_an_error_gives_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n\nbind() to 0.0.0.0:443 failed (13: Permission denied)\n\n")
    assert last_error(log) == f"bind() to 0.0.0.0:443 failed (13: Permission denied). See {log}."


def test_a_log_with_errors_gives_the_last_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: one\nfedmcc.errors.InputError: two.\nlast line\n")
    assert last_error(log) == f"two. See {log}."


def test_lines_of_fedmcc_are_told_from_those_of_flower() -> None:
    record = logging.LogRecord("fedmcc", logging.INFO, "", 0, "Site a joined.", None, None)
    assert message_of(logging.Formatter(LINE_FORMAT).format(record)) == "Site a joined."
    assert message_of("INFO :      Starting Flower SuperNode") is None


def test_a_log_is_renamed_once_it_is_too_large(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("12345")
    rotate_log(log, 5)
    assert log.exists()
    rotate_log(log, 4)
    assert not log.exists()
    assert (tmp_path / "run.old.log").read_text() == "12345"


def test_a_log_to_which_a_program_appends_is_shortened_in_place(tmp_path: Path) -> None:
    log = tmp_path / "flower.log"
    with log.open("ab", buffering=0) as program:
        program.write(b"12345")
        shorten_log(log, 5)
        assert log.read_bytes() == b"12345"
        shorten_log(log, 4)
        program.write(b"67")
    assert (log.read_bytes(), (tmp_path / "flower.old.log").read_bytes()) == (b"67", b"12345")
