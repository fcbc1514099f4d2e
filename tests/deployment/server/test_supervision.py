"""Programs of a server that end: they are started again, but not for ever."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedmcc.deployment.flower.programs import CommandLine, FlowerError
from fedmcc.deployment.server import supervision
from fedmcc.deployment.server.launch import Program, RunningServer, registered_keys
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.supervision import (
    MAX_RESTARTS,
    RESTART_WINDOW,
    Restarts,
    SuperlinkEndedError,
    Supervisor,
)
from fedmcc.deployment.setup import certificates
from fedmcc.deployment.setup.create import add_site
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.errors import InputError


class FakeProgram(Program):
    """A program that ends as often as it is told to."""

    def __init__(self, ends: int = 0) -> None:
        self.ends, self.starts = ends, 0

    @property
    def ended(self) -> bool:
        return self.ends > 0

    def restart(self) -> None:
        self.ends -= 1
        self.starts += 1


@pytest.fixture
def server(operator: OperatorFolder) -> RunningServer:
    operator.logs.mkdir()
    return RunningServer(operator, CommandLine(operator.flower_home), {}, True, FakeProgram(), FakeProgram())


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_RESTART_DELAY", 0.0)


def test_restarts_are_delayed_more_each_time_and_end() -> None:
    now, slept = [0.0], []
    supervision.MAX_RESTART_DELAY = 10.0
    restarts = Restarts("nginx", lambda: now[0], slept.append)
    for _ in range(MAX_RESTARTS):
        restarts.wait()
    assert slept == [2.0, 4.0, 8.0, 10.0]  # the first is immediate
    with pytest.raises(InputError, match=r"nginx ended 6 times within an hour: read the logs"):
        restarts.wait()
    now[0] += RESTART_WINDOW
    restarts.wait()
    assert len(slept) == 4


def test_nginx_is_started_again_with_a_line_on_screen(server: RunningServer) -> None:
    said: list[str] = []
    supervisor = Supervisor(server, said.append)
    supervisor.check()
    assert said == []
    server.nginx.ends = 2  # it ends once more right after the first restart
    supervisor.check()
    assert (server.nginx.starts, said) == (2, ["nginx ended: starting it again."] * 2)


def test_a_run_is_submitted_again_when_flowers_server_ended(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    followed: list[str] = []
    supervisor = Supervisor(server, said.append)

    def follow(server: Any, run: Any, run_id: str, rounds: Any, check: Any) -> Any:
        followed.append(run_id)
        server.superlink.ends = 1 if run_id == "1" else 0
        check()
        yield run_id

    def restart() -> None:
        server.superlink.restart()

    monkeypatch.setattr(supervision, "follow", follow)
    monkeypatch.setattr(supervision, "submit", lambda server, request: "2")
    monkeypatch.setattr(supervisor, "_restart_superlink", restart)
    request = RunRequest("", Path("run"), JoinPolicy())
    assert [*supervisor.follow(request, "1", {})] == ["2"]
    assert (followed, server.superlink.starts) == (["1", "2"], 1)
    assert said == ["Flower's server ended: starting it again; the run continues from its last round."]


def test_a_site_that_is_added_is_registered_while_the_server_runs(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    registered: list[list[Path]] = []
    monkeypatch.setattr(CommandLine, "register", lambda self, keys: registered.append(keys) or [7])
    server.keys, server.nodes = registered_keys(server.operator), {"north": 1, "south": 2}
    supervisor = Supervisor(server, said.append)
    supervisor.check()
    add_site(server.operator, "west")
    supervisor.check(), supervisor.check()
    assert registered == [[server.operator.public_key("west")]]
    assert json.loads(server.operator.nodes_file.read_text()) == {"north": 1, "south": 2, "west": 7}
    assert said == ["west can connect from now on; it takes part from the next round."]


def test_an_error_of_a_running_flower_is_not_hidden(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(*_: Any) -> Any:
        raise FlowerError("`flwr list` failed")
        yield

    monkeypatch.setattr(supervision, "follow", follow)
    with pytest.raises(FlowerError, match="flwr list"):
        next(Supervisor(server, print).follow(RunRequest("", Path("run"), JoinPolicy()), "1", {}))


def test_the_end_of_flowers_server_is_noticed_at_the_next_check(server: RunningServer) -> None:
    server.superlink.ends = 1
    with pytest.raises(SuperlinkEndedError):
        Supervisor(server, print).check()


def test_expiry_is_said_once_in_advance_and_once_when_it_happens(server: RunningServer) -> None:
    said: list[str] = []
    supervisor, operator = Supervisor(server, said.append), server.operator
    authority = certificates.load_authority(operator.authority_key, operator.authority_certificate)
    for days_left in (40, 20, 20, -1, -1, 40):
        past = datetime.now(UTC) - timedelta(days=60 - days_left)
        certificate = certificates.certify_server(authority, "127.0.0.1", 60, past)
        operator.certificate.write_bytes(certificate.certificate_pem)
        supervisor.warn_of_expiry()
    assert [("expires on" in each, "expired on" in each) for each in said] == [(True, False), (False, True)]
    assert all(f"fedmcc federation renew {operator.path}" in each for each in said)
