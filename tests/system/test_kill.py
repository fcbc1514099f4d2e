"""A run that is killed at any moment and resumed ends in the same bits as one that was left alone."""

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
    """All that must not depend on interruptions."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    files = ("checkpoints/final.safetensors", "assignments.csv", "scores.json", "config.toml")
    return (timeless, *((run / name).read_bytes() for name in files))


def finish(process: "subprocess.Popen[str]") -> str:
    """Wait for success; returns what the process said."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def wait_for_rows(process: "subprocess.Popen[str]", run: Path, count: int) -> None:
    """Until so many rounds are over, or the process is."""
    metrics, patience = run / "metrics.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < patience:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.005)


def proceed(start: Start, recipe: Path, run: Path) -> "subprocess.Popen[str]":
    """What a person does after a crash: resume the run, or begin it if it never began."""
    if (run / "config.toml").exists():
        return start("resume", run)
    return start("run", recipe, "--out", run)


@pytest.fixture(scope="module")
def undisturbed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    experiment.run(config.parse(tomllib.loads(tiny)), path)
    return outcome(path)


def test_a_run_killed_at_three_random_moments_ends_in_the_same_bits(
    recipe: Path, tmp_path: Path, started: Start, undisturbed: tuple[Any, ...]
) -> None:
    draw, run = random.Random(1), tmp_path / "killed"
    for rows, most_seconds in ((0, 2.0), (2, 0.1), (7, 0.2)):  # start-up, mid-round, near the end
        process = proceed(started, recipe, run)
        if rows:
            wait_for_rows(process, run, rows)
        time.sleep(draw.uniform(0, most_seconds))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(proceed(started, recipe, run))
    assert outcome(run) == undisturbed


def test_an_interrupted_run_says_how_to_resume_it(
    recipe: Path, tmp_path: Path, started: Start, fedmcc: Command, undisturbed: tuple[Any, ...]
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
    assert outcome(run) == undisturbed


@pytest.fixture
def moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of the folder `run`, as a kill would leave it before each change to the file system."""
    copies: list[Path] = []

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            if (tmp_path / "run").exists():
                copies.append(tmp_path / "moments" / str(len(copies)))
                shutil.copytree(tmp_path / "run", copies[-1])
            return change(*args, **options)

        return changed

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    for name in ("mkdir", "replace", "unlink"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))
    return copies


ALONE = ("method.rounds=2", "data.limit=64", "clusters=3")
TOGETHER = (  # all seven stages of FedMCC+, two clients in each round
    *("method.name=fedmcc-plus", "method.rounds=2", "method.polish_rounds=1", "method.prototypes=2"),
    *("data.limit=60", "clusters=2", "partition.clients=2", "training.batch_size=16"),
)


@pytest.mark.parametrize("settings", [ALONE, TOGETHER], ids=["alone", "together"])
def test_every_moment_between_two_changes_on_disk_can_be_resumed(
    recipe: Path,
    tmp_path: Path,
    fedmcc: Command,
    moments: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
) -> None:
    small = tuple(word for setting in settings for word in ("--set", setting))
    assert fedmcc("run", recipe, *small, "--out", tmp_path / "run").exit_code == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert len(moments) >= 25
    for moment in moments:
        begun = (moment / "config.toml").exists()
        again = ("resume", moment) if begun else ("run", recipe, *small, "--out", moment)
        assert fedmcc(*again).exit_code == 0, moment
        assert outcome(moment) == outcome(tmp_path / "run")


def test_resuming_leaves_no_litter(unfinished: Path, run: Path, fedmcc: Command) -> None:
    litter = [unfinished / ".metrics.jsonl.abc", unfinished / "checkpoints" / ".final.safetensors.abc"]
    for path in (*litter, unfinished / ".mine"):
        path.write_text("half a")
    assert fedmcc("resume", unfinished).exit_code == 0
    assert not any(path.exists() for path in litter)
    assert (unfinished / ".mine").exists()
