"""The state of a federation as its operator sees it."""

import json

import pytest

from fedmcc.deployment.flower.programs import FlowerError
from fedmcc.deployment.server.status import CommandLine, read_status
from fedmcc.deployment.setup.layout import OperatorFolder


def test_status_adds_up_rounds_and_bytes_by_site(operator: OperatorFolder, write_run) -> None:
    assert read_status(operator).summary == "No run was started yet."
    run = write_run(operator.runs / "recipe-001", 2)
    current = {"run": str(run.path), "number": "1"}
    (operator.server / "current.json").write_text(json.dumps(current))
    status = read_status(operator)
    assert [site[3:] for site in status.sites] == [(2, 200, 20), (0, 200, 0)]
    assert (status.running, {site.state for site in status.sites}) == (False, {"server not running"})
    assert status.summary.endswith("is not complete: joint round 2, loss 1.500.")
    table = json.loads(status.to_json())
    assert (table["running"], table["finished"], table["run"]) == (False, False, str(run.path))
    assert [(site["name"], site["rounds"], site["up"]) for site in table["sites"]] == [
        ("north", 2, 20),
        ("south", 0, 0),
    ]
    assert table["last_round"]["round"] == 2


def test_status_leaves_out_a_round_that_is_not_committed(operator: OperatorFolder, write_run) -> None:
    run = write_run(operator.runs / "recipe-001", 2)
    (operator.server / "current.json").write_text(json.dumps({"run": str(run.path), "number": "1"}))
    run.write_json("resume/progress.json", {"rows": 1})
    assert read_status(operator).summary.endswith("is not complete: joint round 1, loss 1.500.")


def test_sites_are_unknown_while_flower_does_not_answer(
    operator: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CommandLine) -> None:
        raise FlowerError("`flwr supernode` failed")

    monkeypatch.setattr(CommandLine, "nodes", fail)
    monkeypatch.setattr("fedmcc.deployment.flower.processes.lock_holder", lambda folder: 1)
    assert [site.state for site in read_status(operator).sites] == ["unknown", "unknown"]


def test_the_state_of_a_site_is_that_of_its_node(
    operator: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        {"node-id": "1", "status": "online", "online-at": "10:00"},
        {"node-id": "2", "status": "registered"},
    ]
    monkeypatch.setattr(CommandLine, "nodes", lambda self: nodes)
    monkeypatch.setattr("fedmcc.deployment.flower.processes.lock_holder", lambda folder: 1)
    (operator.server / "nodes.json").write_text(json.dumps({"north": 1, "south": 2}))
    states = [(site.name, site.state, site.seen) for site in read_status(operator).sites]
    assert states == [("north", "online", "since 10:00"), ("south", "never connected", "")]
