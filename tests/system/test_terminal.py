"""What a run prints while it trains, in a terminal and in a log."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from fedmcc.runs.experiment import Finished, Plan, Scored
from fedmcc.terminal import progress
from fedmcc.training.loop import Step

Command = Callable[..., Result]

MODULE = (sys.executable, "-m", "fedmcc")


def test_a_log_gets_a_line_per_round(fedmcc: Command, recipe: Path) -> None:
    result = fedmcc("run", recipe, "--set", "method.rounds=3", "--out", "run")
    assert result.exit_code == 0, result.output
    err = result.stderr
    line = r"joint {}/3  loss \d\.\d{{3}} acc \.\d{{3}} nmi .*  [\d,]+ images/s  \d:\d\d left"
    for number, shown in enumerate(err.splitlines()[1:4], 1):
        assert re.fullmatch(line.format(number), shown)
    assert "\x1b" not in err


def test_nothing_trained_has_no_speed_and_no_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "say", print)
    row = {"stage": "merging", "round": 1, "loss": None, "confidence": 0.5, "participants": [0]}
    log = progress.LogLines(Plan(0, 0))
    log.round(Scored(row, 1))
    assert capsys.readouterr().out == "merging 1/1  confidence .500\n"
    bar = progress.LiveTable(progress.Progress(), Plan(0, 0), 3)
    assert bar.progress.tasks[bar.task].time_remaining is None


def in_a_terminal(columns: int, *argv: object) -> str:
    """The output of a command in a terminal of this width, without colours."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "CI")}
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    process = subprocess.Popen([*MODULE, *map(str, argv)], env=clean | {"TERM": "xterm"}, **ends)
    os.close(follower)
    output = b""
    try:
        while piece := os.read(leader, 1 << 16):
            output += piece
    except OSError:  # on Linux, the end of the output
        pass
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return without_colours(output.decode())


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


ROW = (
    r"joint +3/3 +-?\d\.\d{3} +\.\d{3} +\.\d{3} +1 +[\d.]+ kB +\d+\.\d"  # loss, scores, clients, bytes, time
)
BAR = r"joint 3/3 ━+ [\d,]+ images/s \d\d:\d\d"


def test_a_terminal_shows_round_loss_scores_speed_and_time_left(recipe: Path, tmp_path: Path) -> None:
    shown = in_a_terminal(80, "run", recipe, "--set", "method.rounds=3", "--out", tmp_path / "run")
    lines = [line.strip() for line in re.split(r"[\r\n]+", shown)]
    assert any(re.fullmatch(ROW, line) for line in lines)
    assert any(re.fullmatch(BAR, line) for line in lines)
    assert "k-means on pixels" in shown


@pytest.mark.parametrize("width", [120, 80])
def test_nothing_of_the_live_table_is_cut_off(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=40)
    monkeypatch.setattr(progress, "err", screen)
    monkeypatch.setattr(progress.Pace, "speed", 1234.0)
    row = {"stage": "representation", "round": 100, "loss": -1.234, "acc": 0.5, "kmeans_acc": 0.125}
    row |= {
        "participants": [*range(10)],
        "refused": [1],
        "bytes_down": 10**8,
        "bytes_up": 10**8,
        "seconds": 123.4,
    }
    events = [Step(0, 1.0, 100), Scored({**row, "round": 99}, 100), Scored(row, 100), Finished({})]
    progress.watch(events, Plan(100_000, 99_900))
    shown = without_colours(screen.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    cells = [line.split() for line in shown if "100/100" in line and "━" not in line]
    expected = [
        "representation",
        "100/100",
        "-1.234",
        ".500",
        ".125",
        "10/11",
        "200.0",
        "MB",
        "123.4",
    ]
    assert cells[-1] == expected
    assert any("representation 100/100 ━" in line and "1,234 images/s" in line for line in shown)
