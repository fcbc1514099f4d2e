"""Who may take part: greetings, and sentences for those that do not fit."""

import time
from importlib.metadata import version

import pytest

from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server import membership
from fedmcc.deployment.server.membership import Common, JoinPolicy, Membership
from fedmcc.errors import InputError


def _roster(federation, **terms):
    known = JoinPolicy(names=("a", "b", "c"), least=2, wait=0.3, again=0.0)._replace(**terms)
    return Membership(federation.grid, Greeting(federation.recipe), known)


def _told(federation, node):
    """What the server has told a node."""
    sent = [m for m in federation.grid.sent if m.metadata.dst_node_id == node]
    return [m.content["facts"]["text"] for m in sent if m.metadata.message_type == "query.refused"]


def test_sites_are_known_by_their_names(three):
    federation = three()
    gathered = _roster(federation)
    gathered.gather()
    assert {name: member.node for name, member in gathered.members.items()} == {"a": 11, "b": 12, "c": 10}
    assert gathered.members["b"].hello.samples == 30


def test_whoever_is_there_makes_the_federation_where_no_names_are_given(three):
    federation = three()
    gathered = _roster(federation, names=())
    gathered.gather()
    assert gathered.names == ("a", "b", "c")
    federation.grid.nodes[20] = federation.node("a") | {"client": "late"}
    gathered._next_look = 0.0
    gathered.look(), gathered.look()
    assert "late is no site of this federation" in _told(federation, 20)[0]


def test_a_site_of_another_version_is_turned_away_on_both_sides(three, monkeypatch, caplog):
    federation = three()
    monkeypatch.setattr(membership, "version", lambda name: "9.9")
    with pytest.raises(InputError, match=r"0 sites are there and 2 are needed: missing a, b, c\."):
        _roster(federation).gather()
    sentence = (
        f"Site a has fedmcc {version('fedmcc')} and the server 9.9: install the same version everywhere."
    )
    assert f"Turned away: {sentence}" in caplog.text
    assert f"The server turned this site away: {sentence}" in caplog.text
    assert sentence in _told(federation, 11)


def test_a_second_site_of_the_same_name_is_turned_away(three):
    federation = three()
    federation.grid.nodes[20] = federation.node("a")
    gathered = _roster(federation, names=())
    gathered.gather()
    assert gathered.members["a"].node == 11
    assert "There is a site a already" in _told(federation, 20)[0]


def test_a_name_is_free_again_when_its_site_is_gone(three):
    federation = three()
    gathered = _roster(federation)
    gathered.gather()
    federation.grid.nodes[20] = federation.grid.nodes.pop(11)
    until = time.monotonic() + 60
    while gathered.members.get("a", (None,))[0] != 20 and time.monotonic() < until:
        gathered._next_look = 0.0
        gathered.look()
    assert gathered.members["a"].node == 20


@pytest.mark.parametrize(
    ("common", "sentence"),
    [
        (Common(3, ""), "The images of site a have 1 channels and those of the federation 3"),
        (Common(1, "another"), "Site a would train another network"),
    ],
)
def test_a_site_that_does_not_fit_the_others_is_turned_away(three, common, sentence):
    federation = three()
    gathered = _roster(federation)
    gathered.gather()
    with pytest.raises(InputError, match="0 sites are there and 2 are needed"):
        gathered.agree(common)
    assert sentence in _told(federation, 11)[0]


def test_a_site_whose_images_cannot_be_read_says_so_in_its_own_log_alone(three, caplog):
    federation = three()
    federation.grid.nodes[11]["data"] = "/nowhere/patients"
    _roster(federation).gather()
    own = [record.message for record in caplog.records if record.name == "fedmcc.deployment.app"]
    told = [record.message for record in caplog.records if record.name != "fedmcc.deployment.app"]
    assert any("/nowhere/patients" in line for line in own)
    assert not any("/nowhere/patients" in line for line in told)
    assert "A site cannot take part: it failed; its own log says why." in told


def test_images_of_different_sizes_need_a_size_in_the_recipe(three):
    federation = three()
    gathered = _roster(federation)
    gathered.gather()
    assert gathered.common_size() == 8
    member = gathered.members["b"]
    gathered.members["b"] = member._replace(hello=member.hello._replace(size=9))
    with pytest.raises(InputError, match=r"a 8, b 9, c 8 pixels.*set views\.size"):
        gathered.common_size()


def test_most_sites_decide_on_channels(three):
    federation = three()
    gathered = _roster(federation)
    gathered.gather()
    member = gathered.members["a"]
    gathered.members["a"] = member._replace(hello=member.hello._replace(channels=3))
    assert gathered.usual_channels() == 1
