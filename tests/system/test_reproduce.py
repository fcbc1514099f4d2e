"""`fedmcc reproduce` at the scale `smoke`: whole tables, a killed process, and the plan."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

Command = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


def test_a_table_is_trained_evaluated_and_written(fedmcc: Command) -> None:
    result = fedmcc("reproduce", "linear-resnet18", "--scale", "smoke", "--jobs", 2, "--out", "table")
    assert result.exit_code == 0, result.output
    text = Path("table/table.md").read_text()
    lines = [line for line in text.split("##")[0].splitlines() if line.startswith("| Fed")]
    assert len(lines) == 5
    assert all("(8" in line and "not yet" not in line for line in lines)
    assert len(list(Path("table/cells").iterdir())) == 6
    before = {path: path.stat().st_mtime_ns for path in Path("table/cells").rglob("*") if path.is_file()}
    assert fedmcc("reproduce", "linear-resnet18", "--scale", "smoke", "--out", "table").exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_figure_is_drawn_with_its_data(fedmcc: Command) -> None:
    result = fedmcc("reproduce", "tsne", "--scale", "smoke", "--out", "figure")
    assert result.exit_code == 0, result.output
    assert len(Path("figure/figure.csv").read_text().splitlines()) == 1 + 2 * 2 * 200
    assert Path("figure/figure.svg").read_text().count("before training") == 2
    assert "<svg" in Path("figure/table.html").read_text()


def wait_for_rows(run: Path, count: int) -> None:
    """Wait until a cell has finished this number of rounds."""
    deadline = time.monotonic() + 300
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_kill_loses_at_most_the_current_round_of_the_current_cell(started: Start, tmp_path: Path) -> None:
    argv = ("reproduce", "momentum", "--scale", "smoke", "--set", "method.rounds=8", "--out", tmp_path / "t")
    first, second = (tmp_path / "t" / "cells" / f"{m}-cifar10-iid-seed0" for m in ("m0.996", "m0.99"))
    process = started(*argv)
    wait_for_rows(second, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = (first / "scores.json").stat().st_mtime_ns
    kept = (second / "metrics.jsonl").read_text().splitlines()[:2]
    assert not (second / "scores.json").exists()
    process = started(*argv)
    err = process.communicate(timeout=300)[1]
    assert process.returncode == 0, err
    assert (first / "scores.json").stat().st_mtime_ns == finished
    rows = (second / "metrics.jsonl").read_text().splitlines()
    assert (rows[:2], len(rows)) == (kept, 9)  # `seconds` too: these rounds were not run again
    assert json.loads((second / "scores.json").read_text())["images"] == 200


def test_a_dry_run_prints_the_cost_and_writes_nothing(fedmcc: Command) -> None:
    result = fedmcc("reproduce", "momentum", "--scale", "paper", "--dry-run", "--out", "nothing")
    assert result.exit_code == 0, result.output
    assert "8 cells" in result.stdout
    assert "27.5 M" in result.stdout  # 50,000 images, 500 epochs of the encoder and 50 of the head
    assert not Path("nothing").exists()


def test_an_unknown_table_is_refused_with_a_suggestion(fedmcc: Command) -> None:
    result = fedmcc("reproduce", "federated-iidd")
    assert result.exit_code == 2
    assert "Did you mean 'federated-iid'?" in result.stderr
