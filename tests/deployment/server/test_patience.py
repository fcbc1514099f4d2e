"""How long a server waits for silent sites: a few times as long as most sites need, not the whole timeout."""

import time
from itertools import islice

import pytest

from fedmcc.deployment.server import patience
from fedmcc.deployment.server.patience import OWN, SHORTEST, USUAL, Patience

LIMIT = 3600.0


def after(*seconds):
    """Patience after the clients 0, 1, … have answered in these times."""
    learned = Patience()
    for client, each in enumerate(seconds):
        learned.answered(client, each)
    return learned


def test_the_last_site_may_need_a_multiple_of_the_median():
    assert after(80.0, 100.0).seconds(range(3), [2], LIMIT) == USUAL * 100


def test_before_half_of_the_sites_have_answered_the_whole_timeout_counts():
    assert after(1.0).seconds(range(3), [1, 2], LIMIT) == LIMIT


def test_a_minority_that_answers_at_once_does_not_shorten_the_time_of_the_others():
    assert after(0.0, 0.0, 500.0).seconds(range(5), [3, 4], LIMIT) == USUAL * 500


def test_patience_has_a_lower_and_an_upper_bound():
    assert after(0.1, 0.1).seconds(range(3), [2], LIMIT) == SHORTEST
    assert after(900.0, 900.0).seconds(range(3), [2], LIMIT) == LIMIT


def test_a_slow_site_that_answered_late_once_is_waited_for_until_it_is_silent():
    learned = after(10.0, 10.0, 400.0)
    assert learned.seconds(range(3), [2], LIMIT) == OWN * 400
    assert learned.seconds(range(3), [], LIMIT) == SHORTEST  # it has answered
    learned.gave_up(2)
    assert learned.seconds(range(3), [2], LIMIT) == SHORTEST


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "query.keys"])
def test_a_silent_site_does_not_cost_the_others_the_round_timeout(kind, four, monkeypatch):
    """Site a is connected and answers no message of this kind."""
    monkeypatch.setattr(patience, "SHORTEST", 0.5)
    monkeypatch.setattr(patience, "USUAL", 1.0)
    federation = four(federation={"secure_aggregation": kind != "train"})
    federation.options["round_timeout"] = 100.0
    silent = next(number for number, node in federation.grid.nodes.items() if node["client"] == "a")
    federation.grid.spoil = lambda message, reply: (
        None if (message.metadata.dst_node_id, message.metadata.message_type) == (silent, kind) else reply
    )
    started = time.monotonic()
    rows = [event.row for event in islice(federation.serve(), 2)]
    assert time.monotonic() - started < 50
    assert [row["participants"] for row in rows] == [[1, 2, 3]] * 2
