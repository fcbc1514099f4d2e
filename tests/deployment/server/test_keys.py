"""A site's name is bound to its key: Flower knows the key's node, the server knows whose it is."""

import pytest

from fedmcc.deployment.app import service_of
from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server.membership import JoinPolicy, Membership
from fedmcc.errors import InputError


def test_a_node_that_takes_the_name_of_another_is_turned_away(three):
    federation = three()  # a is node 11, b 12, c 10
    terms = JoinPolicy(("b", "c"), least=2, wait=0.3, again=0.0, nodes=(("b", 12), ("c", 11)))
    gathered = Membership(federation.grid, Greeting(federation.recipe), terms)
    with pytest.raises(InputError, match="1 sites are there and 2 are needed: missing c"):
        gathered.gather()
    assert [member.node for member in gathered.members.values()] == [12]
    sent = [m for m in federation.grid.sent if m.metadata.message_type == "query.refused"]
    told = {m.metadata.dst_node_id: m.content["facts"]["text"] for m in sent}
    assert "not the key of site c" in told[10]


def test_nodes_are_read_by_name_from_the_flat_configuration():
    service = service_of({"run": "here", "sites": "b,a", "nodes": "b:7,a:18446744073709551615"})
    assert service.terms.nodes == (("b", 7), ("a", 18446744073709551615))


@pytest.mark.parametrize("nodes", ["a", "a:", "a:x", "a:1,b"])
def test_nodes_that_say_nothing_are_refused(nodes):
    with pytest.raises(InputError, match="nodes has"):
        service_of({"run": "here", "sites": "a", "nodes": nodes})
