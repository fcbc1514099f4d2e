"""A server learns one sum of a round, whatever it asks and whenever it dies: it cannot subtract another."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedmcc.deployment.server import secure_engine
from fedmcc.deployment.server.coordinator import prepare
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.secure_engine import SecureSiteEngine
from fedmcc.deployment.server.unmasked import ASKED, SUM, UnmaskedRound
from fedmcc.federation.secure_aggregation.vectors import hash_of_sent
from fedmcc.messages import Task, Update
from fedmcc.numerics.state_dicts import detached
from fedmcc.storage.safetensor_files import load_state

pytestmark = pytest.mark.slow  # whole rounds

SECURE = {"secure_aggregation": True}
REFUSED = "The site has revealed shares for representation, round 1, with other sites"


class Killed(BaseException):
    """The server's process ends."""


class Server:
    """The server of four sites in somebody's hands: it asks for any round, and forgets what it stored."""

    def __init__(self, federation, **policy):
        options = {**federation.options, **policy}
        request = RunRequest(
            federation.recipe, federation.folder / "run", JoinPolicy(tuple("abcd"), **options),
            federation.operator.path,
        )  # fmt: skip
        experiment, run = prepare(federation.grid, request)
        self.federation, self.engine, self.folder = federation, experiment.engine, run.resume_folder
        (self.stage,) = experiment.stages
        self.model = detached(experiment.net.state_dict())
        self.engine.begin(self.folder, {}, {})

    def ask(self, clients, round=1):
        """The updates in a sum that the sites reveal for this round; empty if they do not."""
        for name in (ASKED, SUM):
            (self.folder / name).unlink(missing_ok=True)
        self.engine._failed = None
        tasks = [Task(client, self.stage.name, round, self.model) for client in clients]
        return [event for event in self.engine.run(self.stage, tasks) if isinstance(event, Update)]


def zeroed(task):
    return replace(task, weights={name: torch.zeros_like(value) for name, value in task.weights.items()})


def hash_of_zeros(stage, task):
    return hash_of_sent(stage, zeroed(task))


def clients_of(updates):
    return [update.client for update in updates]


@pytest.mark.parametrize("members", [[0, 1, 2], [1, 2, 3]])
def test_sites_that_have_revealed_a_sum_reveal_no_sum_of_fewer_sites_in_this_round(four, members, caplog):
    server = Server(four(federation=SECURE))
    assert clients_of(server.ask(range(4))) == [0, 1, 2, 3]
    assert server.ask(members) == []
    assert caplog.text.count(REFUSED) >= 3
    assert clients_of(server.ask(members, round=2)) == members


def test_sites_that_are_told_that_a_run_is_finished_do_not_forget_what_they_revealed(four, caplog):
    federation = four(federation=SECURE)
    server = Server(federation)
    server.ask(range(4))
    for name in "abcd":
        (state,) = (federation.folder / name).glob("*/lock")
        site = worker(federation, name)
        site._delete_state(state.parent.name)
        assert not state.parent.exists()
    assert server.ask([0, 1, 2]) == []
    assert REFUSED in caplog.text


def worker(federation, name):
    from flwr.app import Context, RecordDict

    from fedmcc.deployment.site.app import read_site

    return read_site(Context(1, 1, federation.node(name), RecordDict(), {}))


def test_sites_answer_a_round_again_with_the_same_sites_since_it_gives_the_same_sum(four):
    server = Server(four(federation=SECURE))
    first, second = (server.ask(range(4)) for _ in range(2))
    assert all((first[0].weights[name] == value).all() for name, value in second[0].weights.items())


def test_sites_tell_apart_clients_that_the_server_numbers_anew(four, caplog):
    """Site d under the number of site c: the numbers are those of the first sum, the sites are not."""
    server = Server(four(federation=SECURE))
    server.ask([0, 1, 2])
    server.engine.sites.names = ("a", "b", "d", "c")
    assert server.ask([0, 1, 2]) == []
    assert REFUSED in caplog.text


def test_a_site_reveals_nothing_before_enough_sites_have_signed_the_same_list(four, monkeypatch, caplog):
    """The server asks for shares with the signatures of two of four sites, of which three are needed."""
    original = SecureSiteEngine._ask

    def ask(self, exchange, kind, contents, read):
        if kind == "reveal":
            contents = {client: dict(list(signed.items())[:2]) for client, signed in contents.items()}
        return original(self, exchange, kind, contents, read)

    monkeypatch.setattr(SecureSiteEngine, "_ask", ask)
    assert Server(four(federation=SECURE)).ask(range(4)) == []
    assert "2 participants have confirmed the list of received vectors, but 3 are needed" in caplog.text


def test_a_site_does_not_take_the_signature_of_one_site_for_that_of_another(four, monkeypatch, caplog):
    original = SecureSiteEngine._ask

    def ask(self, exchange, kind, contents, read):
        if kind == "reveal":
            contents = {client: dict.fromkeys(signed, signed["0"]) for client, signed in contents.items()}
        return original(self, exchange, kind, contents, read)

    monkeypatch.setattr(SecureSiteEngine, "_ask", ask)
    assert Server(four(federation=SECURE)).ask(range(4)) == []
    assert "1 participants have confirmed the list of received vectors, but 3 are needed" in caplog.text


def die_after(monkeypatch, owner, name):
    """End the server's process when this method has done its work for the first time."""
    original = getattr(owner, name)

    def die(*arguments):
        original(*arguments)
        monkeypatch.setattr(owner, name, original)
        raise Killed

    monkeypatch.setattr(owner, name, die)


def test_a_server_that_dies_after_unmasking_uses_the_stored_sum_even_if_a_site_has_left(
    four, tmp_path, monkeypatch
):
    federation, undisturbed = four(federation=SECURE), four(federation=SECURE)
    die_after(monkeypatch, UnmaskedRound, "save")
    with pytest.raises(Killed):
        next(federation.serve())
    federation.grid.away = {11}
    federation.options["wait"] = 0.1
    (event,) = islice(federation.serve(), 1)
    assert event.row["participants"] == [0, 1, 2, 3]
    list(islice(undisturbed.serve("other"), 1))
    models = [next((tmp_path / run / "resume").glob("model-*")) for run in ("run", "other")]
    first, second = map(load_state, models)
    assert all((first[name] - value).abs().max() < 1e-5 for name, value in second.items())


def test_a_server_that_dies_while_sites_reveal_skips_the_round(four, monkeypatch):
    federation = four(federation=SECURE)
    die_after(monkeypatch, UnmaskedRound, "ask")
    with pytest.raises(Killed):
        next(federation.serve())
    first, second = (event.row for event in islice(federation.serve(), 2))
    assert first["participants"] == []
    assert first["skipped"] == "clients have revealed its sum already, and reveal no other one."
    assert second["participants"] == [0, 1, 2, 3]


def test_a_checkpoint_leaves_no_sum_behind(four):
    federation = four(federation=SECURE)
    next(federation.serve())
    assert not [path for name in (ASKED, SUM) for path in federation.folder.rglob(name)]


@pytest.mark.parametrize("hashed", [hash_of_sent, hash_of_zeros])
def test_a_site_is_in_no_sum_with_sites_that_are_sent_another_model(hashed, four, monkeypatch, caplog):
    """All sites but c are sent weights of 0; the hash in the attempt is that of either model."""
    original = SecureSiteEngine._site_task

    def site_task(self, task):
        sent = original(self, task)
        return sent if task.client == 2 else sent._replace(task=zeroed(task))

    monkeypatch.setattr(SecureSiteEngine, "_site_task", site_task)
    monkeypatch.setattr(secure_engine, "hash_of_sent", hashed)
    assert 2 not in clients_of(Server(four(federation=SECURE)).ask(range(4)))
    assert "The task has another model than that of the other sites." in caplog.text
