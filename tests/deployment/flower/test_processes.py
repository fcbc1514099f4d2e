"""Programs beside ours: one at a time, and none left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmcc.deployment.flower.processes import (
    alone,
    at_home,
    environment,
    lock_holder,
    running,
    sweep,
    wait_until,
)
from fedmcc.errors import InputError

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "from signal import *; import time; signal(SIGTERM, SIG_IGN); print('up', flush=True); time.sleep(60)",
)
PARENT = (
    sys.executable,
    "-c",
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
    "print('up', flush=True); time.sleep(60)",
)


def test_programs_call_nobody_and_have_a_home_of_their_own(tmp_path: Path) -> None:
    told = environment(tmp_path)
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert told["FLWR_HOME"] == str(tmp_path)
    assert "127.0.0.1" in told["NO_PROXY"].split(",")


def test_a_program_ends_with_its_block(tmp_path: Path) -> None:
    with running(SLEEP, tmp_path, tmp_path / "log") as process:
        assert at_home(tmp_path) == [process.pid]
    assert at_home(tmp_path) == []
    assert process.returncode == -signal.SIGTERM


def test_sweeping_ends_also_what_left_the_group(tmp_path: Path) -> None:
    with running(PARENT, tmp_path, tmp_path / "log") as process:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
        assert len(at_home(tmp_path)) == 2
        process.kill()
        process.wait()
        assert len(at_home(tmp_path)) == 1
        sweep(tmp_path)
        assert at_home(tmp_path) == []


def test_a_program_that_will_not_end_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmcc.deployment.flower.processes.GRACE", 0.5)
    with running(STUBBORN, tmp_path, tmp_path / "log") as process:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
    assert process.returncode == -signal.SIGKILL


def test_only_one_may_run_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from fedmcc.deployment.flower.processes import alone\n"
        f"with alone(Path({str(tmp_path)!r}), 'server'): print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        assert lock_holder(tmp_path) == other.pid
        with pytest.raises(InputError, match="running already"), alone(tmp_path, "server"):
            pass
        other.kill()
    assert lock_holder(tmp_path) is None
    with alone(tmp_path, "server"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
