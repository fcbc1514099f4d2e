from dataclasses import replace

import pytest
import torch

from fedmcc.federation.update_checks import expect
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage


class Adding(Stage):
    """A stage whose clients may add means."""

    def extras_error(self, update):
        return "" if set(update.extras) <= {"mean"} else "Unexpected extra tensor."


STAGE = Adding(name="joint", rounds=9, epochs=1, trained=(), shared=("a", "n"))
SENT = {"a": torch.zeros(2, 3), "n": torch.tensor(4), "frozen": torch.ones(5)}


def _judge(updates, limit=10.0):
    tasks = [Task(client, "joint", 3, SENT) for client in range(5)]
    return expect(STAGE, tasks, limit).judge(updates)


def _update(client, moved=1.0, **fields):
    weights = {"a": torch.full((2, 3), moved), "n": torch.tensor(9)}
    return replace(Update(client, "joint", 3, 7, 0.5, weights), **fields)


def _clients(admitted):
    return [update.client for update in admitted.updates], [refused.client for refused in admitted.refused]


BAD = {
    "It was not asked.": {"client": 7},
    "It answers round 2 of joint, not 3 of joint.": {"round": 2},
    "It answers round 3 of head, not 3 of joint.": {"stage": "head"},
    "Its loss is nan.": {"loss": float("nan")},
    "It lacks n.": {"weights": {"a": torch.ones(2, 3)}},
    "It has 'frozen', which is not shared.": {"weights": {**SENT}},
    "Its a is of shape (3, 2), not (2, 3).": {"weights": {**_update(0).weights, "a": torch.ones(3, 2)}},
    "Its n is of type torch.int32, not torch.int64.": {
        "weights": {**_update(0).weights, "n": torch.tensor(4, dtype=torch.int32)}
    },
    "Its a is not finite.": {"weights": {**_update(0).weights, "a": torch.full((2, 3), torch.inf)}},
    "Its mean is not finite.": {"extras": {"mean": torch.tensor([1.0, torch.nan])}},
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_update_is_refused_with_its_reason_and_the_good_ones_count(reason):
    admitted = _judge([_update(0), replace(_update(1), **BAD[reason]), _update(2)])
    assert [update.client for update in admitted.updates] == [0, 2]
    assert [refused.reason for refused in admitted.refused] == [reason]


@pytest.mark.parametrize("samples", [0, -1, True, 2**53 + 1, 10**400])
def test_a_number_of_images_that_no_average_can_use_is_refused(samples):
    admitted = _judge([_update(0, samples=2**53), _update(1, samples=samples)])
    assert _clients(admitted) == ([0], [1])


@pytest.mark.parametrize(("moved", "refused"), [(10.0, []), (10.1, [4]), (-10.1, [4]), (1e30, [4])])
def test_an_update_beyond_the_limit_times_the_median_is_refused(moved, refused):
    assert _clients(_judge([*(_update(client) for client in range(4)), _update(4, moved)]))[1] == refused


def test_half_the_updates_may_be_hostile():
    updates = [_update(0, 1.0), _update(1, 1.5), _update(2, 1e6), _update(3, 1e6)]
    assert _clients(_judge(updates)) == ([0, 1], [2, 3])


def test_of_two_updates_nobody_is_out_of_proportion():
    assert _clients(_judge([_update(0), _update(1, 1e6)])) == ([0, 1], [])


def test_an_infinite_limit_refuses_no_distance():
    assert _clients(_judge([_update(0), _update(1), _update(2, 1e6)], torch.inf))[1] == []


def test_clients_that_moved_nothing_are_in_proportion():
    assert _clients(_judge([_update(client, 0.0) for client in range(4)]))[1] == []


def test_broken_numbers_do_not_move_the_median():
    broken = [_update(client, torch.nan) for client in (0, 1)]
    assert _clients(_judge([*broken, _update(2), _update(3), _update(4, 11.0)])) == ([2, 3], [0, 1, 4])


def test_of_a_client_that_answers_twice_neither_counts_whichever_came_first():
    updates = [_update(0), _update(1), _update(1, 2.0)]
    for order in (updates, updates[::-1]):
        admitted = _judge(order)
        assert _clients(admitted) == ([0], [1])
        assert admitted.refused[0].reason == "It answered 2 times."


def test_a_replay_does_not_silence_the_client_that_it_imitates():
    admitted = _judge([_update(1, round=2), _update(1)])
    assert _clients(admitted) == ([1], [1])


def test_what_clients_add_is_judged_by_the_stage():
    updates = [_update(0, extras={"mean": torch.zeros(3)}), _update(1, extras={"secret": torch.zeros(3)})]
    admitted = _judge(updates)
    assert _clients(admitted) == ([0], [1])
    assert admitted.refused[0].reason == "Unexpected extra tensor."


def test_a_stage_asks_for_no_extras_unless_it_says_so():
    stage = Stage(name="joint", rounds=9, epochs=1, trained=(), shared=("a", "n"))
    reason = stage.extras_error(_update(0, extras={"mean": torch.zeros(3)}))
    assert reason == "Unexpected extra tensor 'mean'."


def test_the_order_of_arrival_does_not_matter():
    updates = [
        _update(0),
        _update(1, torch.nan),
        _update(2),
        _update(3, 1e6),
        _update(7),
        _update(4, loss=None),
    ]
    one, other = _judge(updates), _judge(updates[::-1])
    assert _clients(one) == _clients(other) == ([0, 2, 4], [1, 3, 7])
    assert one.refused == other.refused


def test_no_update_is_no_error():
    assert _judge([]) == ((), ())


def test_judging_leaves_weights_in_double_precision_as_they_came():
    sent = {"a": torch.zeros(2, 3, dtype=torch.float64)}
    stage = replace(STAGE, shared=("a",))
    updates = [
        Update(client, "joint", 3, 7, 0.5, {"a": torch.ones(2, 3, dtype=torch.float64)})
        for client in range(3)
    ]
    sent["a"].fill_(5.0)
    expect(stage, [Task(client, "joint", 3, sent) for client in range(3)], 10.0).judge(updates)
    assert all(torch.equal(update.weights["a"], torch.ones(2, 3).double()) for update in updates)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_single_number_that_is_none_is_found_anywhere(value, kind):
    weights = torch.zeros(4, 5, dtype=kind)
    weights[2, 3] = value
    admitted = _judge([_update(0, extras={"mean": weights}), _update(1, extras={"mean": torch.zeros(0)})])
    assert _clients(admitted) == ([1], [0])
