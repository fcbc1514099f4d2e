"""Which run a server goes on with, what it follows, and what it says of its end."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmcc.deployment.flower.processes import check_port_free, free_port, running, wait_until
from fedmcc.deployment.flower.programs import CommandLine, FlowerError
from fedmcc.deployment.server.launch import Ready, _last_words, _open, choose_run, follow, plan
from fedmcc.deployment.server.status import status
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder, make_private_folders
from fedmcc.deployment.setup.nginx import command_line, find_nginx, local_host
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run
from fedmcc.runs.experiment import Finished, Scored

ROUNDS = {"joint": 2}


class Flower:
    """Flower's command line as far as a run is followed, with a log that ends at once."""

    def log_command(self, number: str) -> tuple[str, ...]:
        return ("echo", "fedmcc.errors.InputError: 0 sites are there and 1 are needed.")

    def status(self, number: str) -> str:
        return "finished:failed"


@pytest.fixture
def ready(operator: OperatorFolder) -> Ready:
    operator.logs.mkdir()
    return Ready(operator, Flower(), {"north": 1, "south": 2}, True)  # type: ignore[arg-type]


def begun(path: Path, rows: int, finished: bool = False) -> Run:
    """A run with so many rounds."""
    path.mkdir(parents=True)
    for name in ("config.toml", "environment.json"):
        (path / name).write_text("{}" if name.endswith("json") else "")
    for number in range(rows):
        row = {"stage": "joint", "round": number + 1, "loss": 1.5, "participants": [0], "seconds": 1.0}
        Run(path).log(
            {**row, "sites": {"0": "north", "1": "south"}, "bytes": {"0": [100, 10], "1": [100, 0]}}
        )
    (path / "resume").mkdir()
    (path / "resume" / "progress.json").write_text(json.dumps({"rows": rows}))
    if finished:
        Run(path).write_json("scores.json", {"images": 0})
    return Run(path)


def test_an_unfinished_run_is_gone_on_with_and_a_finished_one_left_alone(operator: OperatorFolder) -> None:
    recipe = Path("some/recipe.toml")
    assert choose_run(operator, recipe, None).path.name == "recipe-001"
    begun(operator.runs / "recipe-001", 1, finished=True)
    assert choose_run(operator, recipe, None).path.name == "recipe-002"
    begun(operator.runs / "recipe-002", 1)
    assert choose_run(operator, recipe, None).path.name == "recipe-002"
    assert choose_run(operator, Path("other.toml"), None).path.name == "other-001"
    assert choose_run(operator, recipe, Path("/chosen")).path == Path("/chosen")


def test_following_shows_new_rounds_only_and_ends_with_the_scores(ready: Ready, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", 1)
    events = follow(ready, run, "7", ROUNDS)
    assert plan(run, ROUNDS)[:2] == (2, 1)
    run.log({"stage": "joint", "round": 2, "loss": None})
    run.truncate_rows(1)  # as a server that was killed before the commit does
    run.log({"stage": "joint", "round": 2, "loss": 0.5})
    run.write_json("scores.json", {"images": 0})
    shown = [event for event in events if isinstance(event, Scored | Finished)]
    assert [event.row["round"] for event in shown if isinstance(event, Scored)] == [2]
    assert shown[-1] == Finished({"images": 0})


def test_a_run_that_fails_says_why(ready: Ready, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"The run ended: 0 sites are there and 1 are needed\. Its log is"):
        list(follow(ready, Run(tmp_path / "run"), "7", ROUNDS))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "2001:db8::1", "fed.example.org"])
def test_the_proxy_is_found_wherever_it_listens(host: str, tmp_path: Path) -> None:
    if (nginx := find_nginx()) is None:
        message = "nginx is not installed"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    spec = FederationSpec(host, free_port(), free_port(), ("north",))
    operator = create_federation(tmp_path / "federation", spec, 1)
    make_private_folders([operator.flower_home, operator.logs, operator.server / "proxy"])
    check_port_free(spec.port, local_host(spec))
    with running(command_line(nginx, operator), operator.flower_home, operator.logs / "proxy.log"):
        assert wait_until(lambda: _open(operator, spec), 30.0)
        with pytest.raises(InputError, match="in use by another program"):
            check_port_free(spec.port, local_host(spec))


def test_a_log_without_an_error_gives_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\n\nbind() to 0.0.0.0:443 failed (13: Permission denied)\n\n")
    assert _last_words(tmp_path / "log").startswith(
        "bind() to 0.0.0.0:443 failed (13: Permission denied). Its"
    )


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of Flower's program."""
    path = tmp_path / "flwr"
    monkeypatch.setattr("fedmcc.deployment.flower.programs.find_program", lambda name: str(path))

    def write(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)

    return write


@pytest.mark.parametrize(
    "script", ["exec sleep 30", "echo '[]'", "echo 3", "echo no >&2; exit 1", "echo '{}'"]
)
def test_whatever_flower_answers_ends_in_a_sentence(
    script: str, flwr: Callable[[str], None], operator: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.deployment.flower.programs.COMMAND_SECONDS", 1.0)
    flwr(script)
    with pytest.raises(FlowerError, match=r"`flwr supernode` (failed: |did not end within 1 seconds)"):
        CommandLine(operator.flower_home).nodes()
    monkeypatch.setattr(
        "fedmcc.deployment.flower.processes.lock_holder", lambda folder: 1
    )  # a server that is starting
    assert [site.state for site in status(operator).sites] == ["unknown", "unknown"]


def test_status_adds_up_rounds_and_bytes_by_site(operator: OperatorFolder) -> None:
    assert status(operator).sentence == "No run was begun yet."
    run = begun(operator.runs / "recipe-001", 2)
    current = {"run": str(run.path), "number": "1"}
    (operator.server / "current.json").write_text(json.dumps(current))
    found = status(operator)
    assert [site[3:] for site in found.sites] == [(2, 200, 20), (0, 200, 0)]
    assert (found.running, {site.state for site in found.sites}) == (False, {"unknown"})
    assert found.sentence.endswith("is under way: joint round 2, loss 1.500.")
