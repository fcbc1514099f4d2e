"""Which sites may join, and the reasons that rejected ones are sent."""

import time
from importlib.metadata import version

import pytest

from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server import membership
from fedmcc.deployment.server.mailbox import Mailbox
from fedmcc.deployment.server.membership import Membership, Requirements
from fedmcc.deployment.server.request import JoinPolicy
from fedmcc.deployment.server.signer import Signer
from fedmcc.errors import InputError

SITES = {10: "c", 11: "a", 12: "b", 20: "a"}  # whose key each node has


def _membership(federation, **options):
    policy = JoinPolicy(names=("a", "b", "c"), min_sites=2, wait=0.3, retry_seconds=0.0)._replace(**options)
    mailbox = Mailbox(federation.grid, Signer(federation.operator, "run", SITES))
    return Membership(mailbox, Greeting(federation.recipe), policy)


def _reasons(federation, node):
    """The reasons that the server has sent to a rejected node."""
    sent = [m for m in federation.grid.sent if m.metadata.dst_node_id == node]
    return [m.content["facts"]["text"] for m in sent if m.metadata.message_type == "query.refused"]


def test_members_are_listed_by_name(three):
    federation = three()
    gathered = _membership(federation)
    gathered.gather()
    assert {name: member.node for name, member in gathered.members.items()} == {"a": 11, "b": 12, "c": 10}
    assert gathered.members["b"].hello.samples == 30


def test_without_names_the_connected_sites_are_the_federation(three):
    federation = three()
    gathered = _membership(federation, names=())
    gathered.gather()
    assert gathered.names == ("a", "b", "c")
    federation.grid.nodes[20] = federation.node("a") | {"client": "late"}
    gathered._next_node_list = 0.0
    gathered.update(), gathered.update()
    assert "The federation has no site late" in _reasons(federation, 20)[0]


def test_a_site_of_another_version_is_rejected_in_both_logs(three, monkeypatch, caplog):
    federation = three()
    monkeypatch.setattr(membership, "version", lambda name: "9.9")
    with pytest.raises(InputError, match=r"0 sites are connected, but 2 are needed: missing a, b, c\."):
        _membership(federation).gather()
    sentence = (
        f"Site a has fedmcc {version('fedmcc')} and the server 9.9: install the same version everywhere; "
        "only the last number may differ."
    )
    assert f"Rejected: {sentence}" in caplog.text
    assert f"The server rejected this site: {sentence}" in caplog.text
    assert sentence in _reasons(federation, 11)


def test_a_node_with_the_key_of_another_site_is_rejected(three):
    federation = three()  # a is node 11, b 12, c 10
    gathered = _membership(federation, names=("b", "c"), nodes=(("b", 12), ("c", 11)))
    with pytest.raises(InputError, match="1 sites are connected, but 2 are needed: missing c"):
        gathered.gather()
    assert [member.node for member in gathered.members.values()] == [12]
    assert "does not have the key of site c" in _reasons(federation, 10)[0]


def test_a_second_site_of_the_same_name_is_rejected(three):
    federation = three()
    federation.grid.nodes[20] = federation.node("a")
    gathered = _membership(federation, names=())
    gathered.gather()
    assert gathered.members["a"].node == 11
    assert "A site a is connected already" in _reasons(federation, 20)[0]


def test_a_name_is_free_again_when_its_site_disconnects(three):
    federation = three()
    gathered = _membership(federation)
    gathered.gather()
    federation.grid.nodes[20] = federation.grid.nodes.pop(11)
    until = time.monotonic() + 60
    while gathered.members.get("a", (None,))[0] != 20 and time.monotonic() < until:
        gathered._next_node_list = 0.0
        gathered.update()
    assert gathered.members["a"].node == 20


@pytest.mark.parametrize(
    ("requirements", "sentence"),
    [
        (Requirements(3, ""), "The images of site a have 1 channels, but the federation uses 3"),
        (Requirements(1, "another"), "Site a would train a different network"),
    ],
)
def test_a_site_that_does_not_match_the_others_is_rejected(three, requirements, sentence):
    federation = three()
    gathered = _membership(federation)
    gathered.gather()
    with pytest.raises(InputError, match="0 sites are connected, but 2 are needed"):
        gathered.require(requirements)
    assert sentence in _reasons(federation, 11)[0]


def test_paths_of_images_that_cannot_be_read_stay_in_the_log_of_the_site(three, caplog):
    federation = three()
    federation.grid.nodes[11]["data"] = "/nowhere/patients"
    _membership(federation).gather()
    own = [record.message for record in caplog.records if record.name == "fedmcc.deployment.site.app"]
    sent = [record.message for record in caplog.records if record.name != "fedmcc.deployment.site.app"]
    assert any("/nowhere/patients" in line for line in own)
    assert not any("/nowhere/patients" in line for line in sent)
    assert "A site cannot join: it failed (see its log)." in sent


def _with_hello(gathered, name, **fields):
    member = gathered.members[name]
    gathered.members[name] = member._replace(hello=member.hello._replace(**fields))


def test_a_site_whose_images_differ_in_size_from_most_is_rejected(three):
    federation = three()
    gathered = _membership(federation)
    gathered.gather()
    _with_hello(gathered, "a", size=9)
    assert gathered.majority_size() == 8
    gathered.require(Requirements(1, gathered.members["b"].hello.fingerprint, 8))
    assert sorted(gathered.members) == ["b", "c"]
    assert "The images of site a have 9 pixels, but those of most sites 8" in _reasons(federation, 11)[0]


def test_images_of_which_no_majority_has_one_size_need_a_size_in_the_recipe(three):
    gathered = _membership(three())
    gathered.gather()
    _with_hello(gathered, "a", size=9)
    _with_hello(gathered, "b", size=10)
    with pytest.raises(InputError, match=r"a 9, b 10, c 8 pixels.*set views\.size"):
        gathered.majority_size()


def test_a_site_that_reports_an_impossible_number_of_channels_is_rejected(three, caplog):
    federation = three()

    def spoil(message, reply):
        if message.metadata.dst_node_id == 11:
            reply.content["facts"]["channels"] = 2**33
        return reply

    federation.grid.spoil = spoil
    gathered = _membership(federation)
    gathered.gather()
    assert sorted(gathered.members) == ["b", "c"]
    assert "Rejected a site: Invalid channels: 8589934592 is above the limit of 1024." in caplog.text


def test_the_majority_of_sites_decides_on_channels(three):
    federation = three()
    gathered = _membership(federation)
    gathered.gather()
    _with_hello(gathered, "a", channels=3)
    assert gathered.majority_channels() == 1


def test_versions_that_differ_in_the_last_number_work_together(three, monkeypatch):
    major, minor, *_ = version("fedmcc").split(".")
    monkeypatch.setattr(membership, "version", lambda name: f"{major}.{minor}.999")
    gathered = _membership(three())
    gathered.gather()
    assert set(gathered.members) == {"a", "b", "c"}


def test_nobody_waits_for_a_site_that_was_revoked(three):
    federation = three()
    nodes = tuple(pair for pair in federation.options["nodes"] if pair[0] != "b")
    gathered = _membership(federation, nodes=nodes, wait=600.0)
    federation.grid.away.add(12)
    gathered.gather()
    assert sorted(gathered.members) == ["a", "c"]
