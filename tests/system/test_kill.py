"""A run that is killed at any moment and resumed is bit-identical to one that was not interrupted."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedmcc import config
from fedmcc.runs import experiment

Start = Callable[..., "subprocess.Popen[str]"]
Command = Callable[..., Result]


def outcome(run: Path) -> tuple[Any, ...]:
    """Everything that must not depend on interruptions."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    without_times = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    files = ("checkpoints/final.safetensors", "assignments.csv", "scores.json", "config.toml")
    return (without_times, *((run / name).read_bytes() for name in files))


def finish(process: "subprocess.Popen[str]") -> str:
    """Wait until the process succeeds; returns its output."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def wait_for_rows(process: "subprocess.Popen[str]", run: Path, count: int) -> None:
    """Wait until `count` rounds are done, or the process has ended."""
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.005)


def resume_or_start(start: Start, recipe: Path, run: Path) -> "subprocess.Popen[str]":
    """Resume the run, or start it if it was killed before it had a configuration."""
    if (run / "config.toml").exists():
        return start("resume", run)
    return start("run", recipe, "--out", run)


@pytest.fixture(scope="module")
def uninterrupted(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    experiment.run(config.parse(tomllib.loads(tiny)), path)
    return outcome(path)


def test_a_run_killed_at_three_random_moments_is_bit_identical_to_an_uninterrupted_one(
    recipe: Path, tmp_path: Path, started: Start, uninterrupted: tuple[Any, ...]
) -> None:
    draw, run = random.Random(1), tmp_path / "killed"
    for rows, max_seconds in ((0, 2.0), (2, 0.1), (7, 0.2)):  # start-up, mid-round, near the end
        process = resume_or_start(started, recipe, run)
        if rows:
            wait_for_rows(process, run, rows)
        time.sleep(draw.uniform(0, max_seconds))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(resume_or_start(started, recipe, run))
    assert outcome(run) == uninterrupted


def test_a_run_killed_in_a_stage_with_notes_is_bit_identical_to_an_uninterrupted_one(
    tiny: str, tmp_path: Path, started: Start
) -> None:
    text = tiny.replace('name = "mcc"', 'name = "idfd"').replace("hidden = 16\n", "")
    experiment.run(config.parse(tomllib.loads(text)), tmp_path / "straight")
    recipe, run = tmp_path / "idfd.toml", tmp_path / "killed"
    recipe.write_text(text)
    process = started("run", recipe, "--out", run)
    wait_for_rows(process, run, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(started("resume", run))
    assert outcome(run) == outcome(tmp_path / "straight")


def test_an_interrupted_run_prints_how_to_resume_it(
    recipe: Path, tmp_path: Path, started: Start, fedmcc: Command, uninterrupted: tuple[Any, ...]
) -> None:
    run = tmp_path / "interrupted run"
    process = started("run", recipe, "--out", run)
    wait_for_rows(process, run, 1)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"fedmcc resume '{run}'" in err
    assert "Traceback" not in err
    assert fedmcc("resume", run).exit_code == 0
    assert outcome(run) == uninterrupted


def content(folder: Path) -> dict[Path, bytes | None]:
    """The files and folders below a folder, and what they contain."""
    paths = [folder, *folder.rglob("*")] if folder.exists() else []
    return {path.relative_to(folder): None if path.is_dir() else path.read_bytes() for path in paths}


@pytest.fixture
def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of the folder `run` before each change to the file system, as a kill would leave it.

    A folder that does not differ from the last copy is not copied again: it would resume in the same way.
    """
    copies: list[Path] = []

    def copying_first(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            now = content(tmp_path / "run")
            if now and not (copies and content(copies[-1]) == now):
                copies.append(tmp_path / "moments" / str(len(copies)))
                shutil.copytree(tmp_path / "run", copies[-1])
            return change(*args, **options)

        return changed

    monkeypatch.setattr(os, "fsync", copying_first(os.fsync))
    for name in ("mkdir", "replace", "unlink"):
        monkeypatch.setattr(Path, name, copying_first(getattr(Path, name)))
    return copies


ONE_CLIENT = ("method.rounds=2", "data.limit=64", "clusters=3")
TWO_CLIENTS = (  # all stages of the default, two clients in each round
    *("method.name=fedmcc", "method.rounds=2", "clustering.prototypes=2"),
    *("data.limit=60", "clusters=2", "partition.clients=2", "training.batch_size=16"),
)


@pytest.mark.parametrize("settings", [ONE_CLIENT, TWO_CLIENTS], ids=["one client", "two clients"])
def test_every_moment_between_two_changes_on_disk_can_be_resumed(
    recipe: Path,
    tmp_path: Path,
    fedmcc: Command,
    moments: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
) -> None:
    options = tuple(part for setting in settings for part in ("--set", setting))
    assert fedmcc("run", recipe, *options, "--out", tmp_path / "run").exit_code == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert len(moments) >= 25
    for moment in moments:
        started = (moment / "config.toml").exists()
        argv = ("resume", moment) if started else ("run", recipe, *options, "--out", moment)
        assert fedmcc(*argv).exit_code == 0, moment
        assert outcome(moment) == outcome(tmp_path / "run")


def test_resuming_deletes_temporary_files(unfinished: Path, run: Path, fedmcc: Command) -> None:
    temporary = [unfinished / ".metrics.jsonl.abc", unfinished / "checkpoints" / ".final.safetensors.abc"]
    for path in (*temporary, unfinished / ".mine"):
        path.write_text("half a")
    assert fedmcc("resume", unfinished).exit_code == 0
    assert not any(path.exists() for path in temporary)
    assert (unfinished / ".mine").exists()
