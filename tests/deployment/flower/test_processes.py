"""Processes of Flower: locks, termination, and none left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmcc.deployment.flower import pid_files
from fedmcc.deployment.flower.processes import (
    environment,
    exclusive,
    lock_holder,
    processes_of,
    running,
    terminate_all,
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


def test_programs_send_no_telemetry_and_have_their_own_home(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert (
        variables["FLWR_DISABLE_UPDATE_CHECK"]
        == variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
        == "1"
    )
    assert variables["FLWR_HOME"] == str(tmp_path)
    assert "127.0.0.1" in variables["NO_PROXY"].split(",")


def test_a_program_ends_with_its_block(tmp_path: Path) -> None:
    with running(SLEEP, tmp_path, tmp_path / "log") as process:
        assert processes_of(tmp_path) == [process.pid]
    assert processes_of(tmp_path) == []
    assert process.returncode == -signal.SIGTERM


def test_processes_in_other_sessions_are_terminated_too(tmp_path: Path) -> None:
    with running(PARENT, tmp_path, tmp_path / "log") as process:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
        assert len(processes_of(tmp_path)) == 2
        process.kill()
        process.wait()
        assert len(processes_of(tmp_path)) == 1
        terminate_all(tmp_path)
        assert processes_of(tmp_path) == []


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmcc.deployment.flower.processes.TERMINATION_SECONDS", 0.5)
    with running(STUBBORN, tmp_path, tmp_path / "log") as process:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
    assert process.returncode == -signal.SIGKILL


WORKERS = (  # like nginx: no environment, and a worker in the session of its master
    "env",
    "-i",
    sys.executable,
    "-c",
    "import os, sys, time; os.fork() and print('up', flush=True); time.sleep(60)",
)


def test_workers_without_environment_are_found_after_their_master_was_killed(tmp_path: Path) -> None:
    with running(WORKERS, tmp_path, tmp_path / "log") as master:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
        (worker,) = set(processes_of(tmp_path)) - {master.pid}
        pid_files.record(tmp_path, master.pid)  # its name, now that `env` has become Python
        master.kill()
        master.wait()
        assert processes_of(tmp_path) == [worker]
        terminate_all(tmp_path)
        assert processes_of(tmp_path) == [*(tmp_path / "pids").iterdir()] == []


def test_no_worker_is_left_when_the_block_of_its_killed_master_ends(tmp_path: Path) -> None:
    with running(WORKERS, tmp_path, tmp_path / "log") as master:
        assert wait_until(lambda: (tmp_path / "log").read_bytes() == b"up\n", 30.0)
        (worker,) = set(processes_of(tmp_path)) - {master.pid}
        pid_files.record(tmp_path, master.pid)
        master.kill()
    assert wait_until(lambda: pid_files.read_facts(worker) is None, 30.0)
    assert [*(tmp_path / "pids").iterdir()] == []


def test_a_process_that_got_the_id_of_a_recorded_one_is_not_found(tmp_path: Path) -> None:
    with running(SLEEP, tmp_path / "other", tmp_path / "log") as process:
        facts = pid_files.read_facts(process.pid)
        pid_files.record(tmp_path, process.pid)
        record = tmp_path / "pids" / str(process.pid)
        assert pid_files.recorded(tmp_path) == [process.pid]
        for change in ({"start": facts.start - 1}, {"boot": "another start of the machine"}):
            content = json.loads(record.read_text())
            record.write_text(json.dumps(content | change))
            assert pid_files.recorded(tmp_path) == []
            record.write_text(json.dumps(content))


def test_the_lock_is_exclusive_and_a_killed_process_releases_it(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from fedmcc.deployment.flower.processes import exclusive\n"
        f"with exclusive(Path({str(tmp_path)!r}), 'server'): print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        assert lock_holder(tmp_path) == other.pid
        with pytest.raises(InputError, match="running already"), exclusive(tmp_path, "server"):
            pass
        other.kill()
    assert lock_holder(tmp_path) is None
    with exclusive(tmp_path, "server"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
