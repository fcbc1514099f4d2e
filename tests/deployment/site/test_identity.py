"""Which orders a site accepts, and what it remembers of them."""

import threading
import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedmcc.deployment.flower.signatures import ForgedError, Order, sign_order
from fedmcc.deployment.setup.certificates import certify_server, create_authority, load_authority, load_server
from fedmcc.deployment.setup.create import renew_certificate
from fedmcc.deployment.site import identity
from fedmcc.deployment.site.identity import Ledger, SiteIdentity

NOW = round(1000 * time.time())
RECIPE = (
    'seed = 1\n[method]\nname = "mcc"\nepochs = 5\n[partition]\nclients = 2\n[training]\nbatch_size = 8\n'
)


def order(number=0, **changes):
    made = Order("query.hello", "run", "north", "7", "", 0, f"{number:032x}", NOW + number, NOW + 3_600_000)
    return made._replace(**changes)


def message(operator, signed=None, server=None):
    content = RecordDict({"facts": ConfigRecord({"text": "hello"})})
    sign_order(content, signed or order(), server or load_server(operator.key, operator.certificate), {})
    return Message(content, 7, "query.hello")


@pytest.fixture
def north(operator):
    return SiteIdentity(operator.site("north"), 7)


def test_an_order_of_the_server_is_accepted_once(operator, north):
    genuine = message(operator)
    assert north.receive(genuine).order == order()
    with pytest.raises(ForgedError, match="received before"):
        north.receive(genuine)
    with pytest.raises(ForgedError, match="received before"):  # after a restart of the site as well
        SiteIdentity(operator.site("north"), 7).receive(genuine)


@pytest.mark.parametrize("change", [{"site": "south"}, {"node": "8"}, {"kind": "train"}])
def test_an_order_for_another_site_is_refused_and_not_remembered(operator, north, change):
    with pytest.raises(ForgedError, match="another site or purpose"):
        north.receive(message(operator, order(**change)))
    assert not operator.site("north").ledger.exists()


def test_a_server_with_a_renewed_certificate_is_accepted(operator, north):
    north.receive(message(operator))
    renew_certificate(operator, 30)
    assert north.receive(message(operator, order(1))).order == order(1)


def test_a_server_of_another_authority_is_refused(operator, north):
    with pytest.raises(ForgedError, match="no certificate of the authority"):
        north.receive(message(operator, server=certify_server(create_authority(), "127.0.0.1", 1)))


def test_a_certificate_for_another_host_is_refused(operator, north):
    site, authority = (
        operator.site("north"),
        load_authority(operator.authority_key, operator.authority_certificate),
    )
    site.config_file.write_text('name = "north"\nserver = "fed.example.org:8000"\n')
    with pytest.raises(ForgedError, match="no certificate of the authority"):
        north.receive(message(operator))
    north.receive(message(operator, server=certify_server(authority, "fed.example.org", 1)))


def test_an_unsigned_message_is_refused(north):
    with pytest.raises(ForgedError, match="not signed"):
        north.receive(Message(RecordDict(), 7, "query.hello"))


def test_expired_orders_are_not_kept(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.add(order(1, expires=NOW - 1))
    ledger.add(order(2))
    assert list(ledger._read()["orders"]) == [order(2).nonce]


def test_the_ledger_is_bounded_and_still_refuses_every_order_it_has_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "MAX_ORDERS", 3)
    ledger, received = Ledger(tmp_path / "ledger.json"), [order(number) for number in range(8)]
    for each in received:
        ledger.add(each)
    assert len(ledger._read()["orders"]) == 3
    for each in received:
        with pytest.raises(ForgedError, match="received before"):
            ledger.add(each)
    ledger.add(order(8))


def test_a_damaged_ledger_refuses_all_orders_until_now_and_no_later_ones(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.file.write_text("{")
    with pytest.raises(ForgedError):
        ledger.add(order(created=round(1000 * time.time()) - 1))
    time.sleep(0.01)
    ledger.add(order(1, created=round(1000 * time.time())))  # the time of the damage counts, not now
    with pytest.raises(ForgedError):
        ledger.add(order(1, created=round(1000 * time.time())))


def test_one_of_two_processes_accepts_an_order(tmp_path):
    ledger, outcomes = Ledger(tmp_path / "ledger.json"), []

    def add():
        try:
            ledger.add(order())
            outcomes.append("accepted")
        except ForgedError:
            outcomes.append("refused")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["accepted", "refused", "refused", "refused"]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("", "", []),
        ("clients = 2", "clients = 5", []),  # the server counts the sites
        ("batch_size = 8", "batch_size = 8\nkeep_optimizer = false\n[views]\nsize = 8", []),
        ("epochs = 5", "epochs = 1000000", ["method.epochs"]),
        ("seed = 1", "seed = 2\nthreads = 64", ["seed", "threads"]),
        ("epochs = 5", "rounds = 3", ["method.epochs", "method.rounds"]),
    ],
)
def test_a_task_may_differ_from_the_greeting_only_in_what_the_server_resolves(old, new, changed, tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.agree("run", RECIPE)
    assert ledger.differences("run", RECIPE.replace(old, new)) == changed


def test_options_that_the_recipe_sets_are_not_resolved(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.agree("run", RECIPE + "keep_optimizer = true\n")
    assert ledger.differences("run", RECIPE + "keep_optimizer = false\n") == ["training.keep_optimizer"]


def test_without_a_greeting_all_tasks_keep_to_the_first(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    assert ledger.differences("run", RECIPE) == []
    assert ledger.differences("run", RECIPE.replace("epochs = 5", "epochs = 6")) == ["method.epochs"]


def test_recipes_of_old_runs_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "MAX_RECIPES", 2)
    ledger = Ledger(tmp_path / "ledger.json")
    for run in ("one", "two", "one", "three"):
        ledger.agree(run, RECIPE)
    assert list(ledger._read()["recipes"]) == ["one", "three"]
