"""Measurements for Prometheus: what a run directory says, on the loopback address only."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from fedmcc.deployment.server.metrics import render, serving_metrics
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run

DASHBOARD = Path(__file__).parents[3] / "deploy/grafana.json"
ROW = {"seconds": 2.5, "bytes_down": 100, "bytes_up": 10, "sites": {"0": "north", "1": "south"}}


@pytest.fixture
def run(write_run, tmp_path: Path) -> Run:
    written = write_run(tmp_path / "run", 0)
    rows = [
        {"loss": 2.0, "participants": [0, 1], "refused": [], "dropped": []},
        {"loss": 1.5, "participants": [0], "refused": [{"client": 1, "reason": "x"}], "dropped": [1]},
    ]
    for number, row in enumerate(rows, start=1):
        written.log({"stage": "joint", "round": number, **ROW, **row})
    written.write_json("resume/progress.json", {"rows": 2})
    return written


def parse(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_measurements_are_those_of_the_rows(run: Run) -> None:
    values = parse(render(run, run.metrics_file.stat().st_mtime + 30))
    assert values == {
        "fedmcc_rounds_total": 2,
        "fedmcc_refused_total": 1,
        "fedmcc_dropped_total": 1,
        'fedmcc_bytes_total{direction="sent"}': 200,
        'fedmcc_bytes_total{direction="received"}': 20,
        'fedmcc_site_rounds_total{site="north"}': 2,
        'fedmcc_site_rounds_total{site="south"}': 1,
        "fedmcc_participants": 1,
        "fedmcc_round_seconds": 2.5,
        "fedmcc_loss": 1.5,
        'fedmcc_stage_round{stage="joint"}': 2,
        "fedmcc_last_round_age_seconds": 30,
    }


def test_every_line_has_the_text_format_of_prometheus(run: Run) -> None:
    sample = r'[a-z_]+(\{[a-z]+="[a-z]+"\})? [0-9.e+-]+'
    comment = r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge))"
    assert all(re.fullmatch(f"{sample}|{comment}", line) for line in render(run, 0).splitlines())


def test_a_run_without_rounds_has_totals_only(write_run, tmp_path: Path) -> None:
    assert parse(render(write_run(tmp_path / "run", 0), 0))["fedmcc_rounds_total"] == 0
    assert parse(render(Run(tmp_path / "nothing yet"), 0))["fedmcc_rounds_total"] == 0


def test_measurements_are_served_on_the_loopback_address(run: Run) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving_metrics(run, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert parse(answer.read().decode())["fedmcc_rounds_total"] == 2
        with pytest.raises(InputError, match=r"choose another --metrics-port"), serving_metrics(run, port):
            pass
    with serving_metrics(run, port):  # the port is free again
        pass


def test_the_dashboard_shows_only_measurements_that_exist_and_all_of_them(run: Run) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    shown = set(re.findall(r"fedmcc_[a-z_]+", queries))
    assert shown == {name.partition("{")[0] for name in parse(render(run, 0))}
