"""Which run and configuration a server uses, and how it follows a run to its end or failure."""

from pathlib import Path

import pytest

from fedmcc import config
from fedmcc.deployment.flower.programs import CommandLine, FlowerError
from fedmcc.deployment.server.launch import RunningServer
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import check_request, choose_config, choose_run, follow, plan
from fedmcc.deployment.setup.certificates import certify_server, load_authority
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run
from fedmcc.runs.experiment import Finished, Scored
from fedmcc.terminal.progress import watch

ROUNDS = {"joint": 2}


class Flower(CommandLine):
    """The part of Flower's command line that `follow` uses, with a log that ends at once."""

    def log_command(self, run_id: str) -> tuple[str, ...]:
        return ("echo", "fedmcc.errors.InputError: 0 sites are connected, but 1 are needed.")

    def status(self, run_id: str) -> str:
        return "finished:failed"


@pytest.fixture
def server(operator: OperatorFolder) -> RunningServer:
    operator.logs.mkdir()
    return RunningServer(operator, Flower(operator.flower_home), {"north": 1, "south": 2}, True)


def test_an_unfinished_run_is_resumed_and_a_finished_one_is_not(operator: OperatorFolder, write_run) -> None:
    recipe = Path("some/recipe.toml")
    assert choose_run(operator, recipe, None).path.name == "recipe-001"
    write_run(operator.runs / "recipe-001", 1, finished=True)
    assert choose_run(operator, recipe, None).path.name == "recipe-002"
    write_run(operator.runs / "recipe-002", 1)
    assert choose_run(operator, recipe, None).path.name == "recipe-002"
    assert choose_run(operator, Path("other.toml"), None).path.name == "other-001"
    assert choose_run(operator, recipe, Path("/chosen")).path == Path("/chosen")


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("notes", "{}/notes is not empty and is not a run directory: choose another folder with --run."),
        ("notes/todo.txt", "{}/notes/todo.txt is a file: choose another folder with --run."),
        ("notes/todo.txt/run", "{}/notes/todo.txt is a file: choose another folder with --run."),
    ],
)
def test_a_folder_that_cannot_hold_the_run_is_refused_before_the_server_starts(
    operator: OperatorFolder, tmp_path: Path, run: str, sentence: str
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("buy milk")
    with pytest.raises(InputError) as caught:
        check_request(RunRequest("", tmp_path / run, JoinPolicy()), operator.read_spec())
    assert str(caught.value) == sentence.format(tmp_path)
    assert (tmp_path / "notes" / "todo.txt").read_text() == "buy milk"


def test_a_new_an_empty_and_a_started_run_directory_are_accepted(
    operator: OperatorFolder, tmp_path: Path, write_run
) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "started", 1)
    for run in ("new", "not/yet/there", "empty", "started"):
        check_request(RunRequest("", tmp_path / run, JoinPolicy()), operator.read_spec())


def test_a_started_run_keeps_its_configuration(three, tmp_path: Path) -> None:
    federation = three()
    next(federation.serve())
    run, table = Run(tmp_path / "run"), federation.table
    own = choose_config(run, config.parse(table))
    assert (own.views.size, own.method.rounds) == (8, 3)  # the recipe does not set the size
    with pytest.raises(InputError, match=r"started with another value of method\.rounds: .*--run"):
        choose_config(run, config.parse(config.set_key(table, "method.rounds", 9)))
    with pytest.raises(InputError, match=r"started with another value of method\.name:"):
        choose_config(run, config.parse(config.set_key(table, "method", {"name": "fedbyol"})))
    new = config.parse(config.set_key(table, "method.rounds", 9))
    assert choose_config(Run(tmp_path / "new"), new) == new


def test_following_shows_new_rounds_only_and_ends_with_the_scores(
    server: RunningServer, tmp_path: Path, write_run
) -> None:
    run = write_run(tmp_path / "run", 1)
    events = follow(server, run, "7", ROUNDS)
    assert plan(run, ROUNDS)[:2] == (2, 1)
    run.log({"stage": "joint", "round": 2, "loss": None})
    run.truncate_rows(1)  # as a server does that was killed before the commit
    run.log({"stage": "joint", "round": 2, "loss": 0.5})
    run.write_json("scores.json", {"images": 0})
    shown = [event for event in events if isinstance(event, Scored | Finished)]
    assert [event.row["round"] for event in shown if isinstance(event, Scored)] == [2]
    assert shown[-1] == Finished({"images": 0})


def test_sites_that_drop_out_are_on_screen_after_their_round(
    server: RunningServer, tmp_path: Path, write_run, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", 1)
    row = {"stage": "joint", "round": 2, "loss": 0.5, "sites": {"0": "north", "1": "south"}, "seconds": 1.0}
    row |= {
        "reasons": {"1": "its connection was lost."},
        "refused": [{"client": 0, "reason": "It is stale."}],
    }
    run.log(row)
    run.write_json("scores.json", {"images": 0})
    watch(follow(server, run, "7", ROUNDS), plan(run, ROUNDS))
    shown = " ".join(capsys.readouterr().err.split())
    assert "Site north was refused in joint, round 2: it is stale." in shown
    assert "Site south dropped out of joint, round 2: its connection was lost." in shown


def test_a_round_that_was_not_committed_is_shown_again(
    server: RunningServer, tmp_path: Path, write_run
) -> None:
    run = write_run(tmp_path / "run", 1)
    run.log({"stage": "joint", "round": 2, "loss": 0.5})
    assert plan(run, ROUNDS)[:2] == (2, 1)
    run.write_json("scores.json", {"images": 0})
    shown = [event for event in follow(server, run, "7", ROUNDS) if isinstance(event, Scored)]
    assert [event.row["round"] for event in shown] == [2]


def test_a_run_that_fails_is_an_error_with_its_reason(server: RunningServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^The run failed: 0 sites are connected, but 1 are needed\. See "):
        list(follow(server, Run(tmp_path / "run"), "7", ROUNDS))


class Unreachable(Flower):
    """Flower's command line if the certificate of its server is not accepted."""

    def status(self, run_id: str) -> str:
        raise FlowerError("`flwr list` failed: check your network connection")


@pytest.mark.parametrize("days", [-1, 30])
def test_a_certificate_that_expired_during_a_run_is_named(
    server: RunningServer, tmp_path: Path, write_run, days: int
) -> None:
    operator = server.operator
    authority = load_authority(operator.authority_key, operator.authority_certificate)
    certified = certify_server(authority, "127.0.0.1", days)
    operator.certificate.write_bytes(certified.certificate_pem)
    server = RunningServer(operator, Unreachable(operator.flower_home), server.nodes, True)
    run = write_run(tmp_path / "run", 1)
    expected, sentence = (InputError, "expired on 2.*renew") if days < 0 else (FlowerError, "network")
    with pytest.raises(expected, match=sentence):
        list(follow(server, run, "1", ROUNDS))
