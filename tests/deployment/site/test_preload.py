"""Messages are answered by copies of a loaded process; without one, by Flower's program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.site import hand_over, preload

pytestmark = pytest.mark.slow
HAND_OVER = Path(hand_over.__file__)


def hand(pipe, *arguments):
    argv = (sys.executable, "-I", "-S", str(HAND_OVER), str(pipe), "/bin/echo", *arguments)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_arguments_go_to_whoever_reads_the_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR)) as lines:
        assert hand(pipe, "--token", "line\nbreak") == ""
        assert json.loads(lines.readline()) == ["--token", "line\nbreak"]


@pytest.mark.parametrize("pipe", ["missing", "unread"])
def test_without_a_reader_the_program_itself_is_run(tmp_path, pipe):
    os.mkfifo(tmp_path / "unread")
    assert hand(tmp_path / pipe, "--token", "t") == "--token t\n"


def test_arguments_that_could_arrive_in_pieces_are_not_handed_over(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    assert hand(pipe, "x" * 5000) == "x" * 5000 + "\n"
    os.close(reader)


def test_flowers_programs_find_the_script_first_and_a_copy_answers(tmp_path):
    log = tmp_path / "site.log"
    with preload.preloaded(tmp_path, log) as ids:
        env = processes.environment(tmp_path)
        for address in ("127.0.0.1:1", "127.0.0.1:2"):  # nobody listens there, and `--help` needs nobody
            argv = (preload.PROGRAM, "--runtime-api-address", address, "--help")
            subprocess.run(argv, env=env, timeout=60, check=True)
        answered = lambda: log.read_text().count("usage: flwr-clientapp") == 2  # noqa: E731
        assert processes.wait_until(answered, 120.0), log.read_text()
        ended = lambda: processes.processes_of(tmp_path) == list(ids)  # noqa: E731
        assert processes.wait_until(ended, 60.0)  # the copies, and the loaded process goes on
    assert not processes.processes_of(tmp_path)


def test_homes_without_a_script_use_flowers_program(tmp_path):
    path = processes.environment(tmp_path)["PATH"].split(os.pathsep)
    found = next(folder for folder in path if (Path(folder) / preload.PROGRAM).exists())
    assert str(Path(found) / preload.PROGRAM) == programs.find_program(preload.PROGRAM)
