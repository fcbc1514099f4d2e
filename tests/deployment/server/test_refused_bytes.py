"""The bytes of replies that are refused count as traffic of their site."""

import math

from fedmcc.deployment.messages import Greeting
from fedmcc.deployment.server.mailbox import Fault, Mailbox, Received
from fedmcc.deployment.server.membership import Membership
from fedmcc.deployment.server.request import JoinPolicy
from fedmcc.deployment.server.site_engine import SiteEngine, TaskHeader
from fedmcc.federation.traffic import Traffic, add_traffic
from fedmcc.federation.update_checks import Refused
from fedmcc.messages import Discarded, Task


def test_bytes_of_a_refused_reply_are_counted(three, monkeypatch):
    box = Mailbox(three().grid)
    refused = Received("id", 7, Fault("Its reply is malformed.", refused=True), 500)
    monkeypatch.setattr(box, "receive", lambda sent, until: [refused])
    membership = Membership(box, Greeting(""), JoinPolicy(names=("north",)))
    engine = SiteEngine(membership, TaskHeader("run", "", ""), 8)
    events = list(engine._receive({"id": Task(0, "joint", 1, {})}, math.inf))
    assert events == [Refused(0, "Its reply is malformed."), Discarded(0, 500)]
    traffic = {}
    add_traffic(traffic, [], [event for event in events if isinstance(event, Discarded)])
    assert traffic == {0: Traffic(0, 500)}
