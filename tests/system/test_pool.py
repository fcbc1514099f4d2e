"""Runs with the engine `pool` that are killed or interrupted, and the processes that remain."""

import json
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedmcc import config
from fedmcc.runs import experiment

Start = Callable[..., "subprocess.Popen[str]"]
THREE = {"partition": {"clients": 3}, "engine": {"name": "pool", "workers": 2}}


@pytest.fixture(scope="module")
def table(tiny: str) -> dict[str, Any]:
    table = tomllib.loads(tiny) | THREE
    table["method"] = {**table["method"], "name": "fedmcc", "rounds": 4, "epochs": 1}
    table["clustering"] = {"name": "mcc", "rounds": 4, "epochs": 1, "hidden": 16}
    table["training"] = {"batch_size": 8}
    return table


@pytest.fixture
def pooled(table: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "pooled.toml"
    path.write_text(config.dump(config.parse(table)))
    return path


@pytest.fixture(scope="module")
def undisturbed(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The outcome of the run in one process, without interruptions."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    experiment.run(config.parse(table | {"engine": {"name": "embedded"}}), path)
    return outcome(path)


def outcome(run: Path) -> tuple[Any, ...]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    files = ("checkpoints/final.safetensors", "assignments.csv", "scores.json")
    return (timeless, *((run / name).read_bytes() for name in files))


def wait_for_rows(process: "subprocess.Popen[str]", run: Path, count: int) -> None:
    metrics, until = run / "metrics.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.005)


def descendants(pid: int) -> set[int]:
    """All descendants of a process."""
    parents = {int(path.parent.name): _parent(path) for path in Path("/proc").glob("[0-9]*/stat")}
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rsplit(") ", 1)[1].split()[1])
    except OSError:  # it has ended
        return 0


def all_gone(pids: set[int], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while pids and time.monotonic() < until:
        pids = {pid for pid in pids if _is_running(pid)}
        time.sleep(0.02)
    return not pids


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def test_a_killed_run_leaves_no_process_and_resumes_bit_identically(
    pooled: Path, tmp_path: Path, started: Start, undisturbed: tuple[Any, ...]
) -> None:
    run = tmp_path / "run"
    for argv, rows in ((("run", pooled, "--out", run), 2), (("resume", run), 5)):  # one in each stage
        process = started(*argv)
        wait_for_rows(process, run, rows)
        process.send_signal(signal.SIGSTOP)  # so that it does not end while its processes are counted
        below = descendants(process.pid)
        assert len(below) >= 3  # two workers, and the process from which they are forked
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert all_gone(below)
    out, err = started("resume", run).communicate(timeout=120)
    assert "Traceback" not in out + err
    assert outcome(run) == undisturbed


def test_a_killed_worker_drops_its_client_once_and_an_interruption_ends_all_processes(
    pooled: Path, tmp_path: Path, started: Start
) -> None:
    run = tmp_path / "run"
    process = started("run", pooled, "--set", "method.rounds=400", "--out", run)
    wait_for_rows(process, run, 2)
    process.send_signal(signal.SIGSTOP)
    workers = [pid for pid in descendants(process.pid) if not descendants(pid) and _trains(pid)]
    os.kill(workers[0], signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    wait_for_rows(process, run, 12)
    below = descendants(process.pid)
    for pid in (process.pid, *below):  # as a terminal does
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert (process.returncode, "Traceback" in err, all_gone(below)) == (130, False, True)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(len(row["dropped"]) for row in rows) <= 1
    assert all(sorted(row["participants"] + row["dropped"]) == [0, 1, 2] for row in rows)


def _trains(pid: int) -> bool:
    return "resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text()
