from dataclasses import replace

import pytest
import torch

from fedmcc.federation.update_checks import checker_for
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage


class WithMeans(Stage):
    """A stage whose clients may send means."""

    def extras_error(self, update):
        return "" if set(update.extras) <= {"mean"} else "Unexpected extra tensor."


STAGE = WithMeans(name="joint", rounds=9, epochs=1, trained=(), shared=("a", "n"))
SENT = {"a": torch.zeros(2, 3), "n": torch.tensor(4), "frozen": torch.ones(5)}


def _check(updates, limit=10.0):
    tasks = [Task(client, "joint", 3, SENT) for client in range(5)]
    return checker_for(STAGE, tasks, limit).check(updates)


def _update(client, moved=1.0, **fields):
    weights = {"a": torch.full((2, 3), moved), "n": torch.tensor(9)}
    return replace(Update(client, "joint", 3, 7, 0.5, weights), **fields)


def _clients(checked):
    return [update.client for update in checked.updates], [refused.client for refused in checked.refused]


BAD = {
    "It has no task in this round.": {"client": 7},
    "It answers round 2 of joint, not round 3 of joint.": {"round": 2},
    "It answers round 3 of head, not round 3 of joint.": {"stage": "head"},
    "Its loss is nan.": {"loss": float("nan")},
    "Its n is missing.": {"weights": {"a": torch.ones(2, 3)}},
    "It has 'frozen', which is not shared.": {"weights": {**SENT}},
    "Its a has shape (3, 2); expected (2, 3).": {"weights": {**_update(0).weights, "a": torch.ones(3, 2)}},
    "Its n has type torch.int32; expected torch.int64.": {
        "weights": {**_update(0).weights, "n": torch.tensor(4, dtype=torch.int32)}
    },
    "Its a is not finite.": {"weights": {**_update(0).weights, "a": torch.full((2, 3), torch.inf)}},
    "Its mean is not finite.": {"extras": {"mean": torch.tensor([1.0, torch.nan])}},
}


@pytest.mark.parametrize("reason", BAD)
def test_an_invalid_update_is_refused_with_its_reason_and_the_others_are_accepted(reason):
    checked = _check([_update(0), replace(_update(1), **BAD[reason]), _update(2)])
    assert [update.client for update in checked.updates] == [0, 2]
    assert [refused.reason for refused in checked.refused] == [reason]


@pytest.mark.parametrize("samples", [0, -1, True, 2**53 + 1, 10**400])
def test_an_invalid_number_of_images_is_refused(samples):
    checked = _check([_update(0, samples=2**53), _update(1, samples=samples)])
    assert _clients(checked) == ([0], [1])


@pytest.mark.parametrize(("moved", "refused"), [(10.0, []), (10.1, [4]), (-10.1, [4]), (1e30, [4])])
def test_an_update_beyond_the_limit_times_the_median_is_refused(moved, refused):
    assert _clients(_check([*(_update(client) for client in range(4)), _update(4, moved)]))[1] == refused


def test_half_the_updates_may_be_hostile():
    updates = [_update(0, 1.0), _update(1, 1.5), _update(2, 1e6), _update(3, 1e6)]
    assert _clients(_check(updates)) == ([0, 1], [2, 3])


def test_two_updates_are_not_compared():
    assert _clients(_check([_update(0), _update(1, 1e6)])) == ([0, 1], [])


def test_an_infinite_limit_accepts_any_distance():
    assert _clients(_check([_update(0), _update(1), _update(2, 1e6)], torch.inf))[1] == []


def test_updates_without_any_change_are_accepted():
    assert _clients(_check([_update(client, 0.0) for client in range(4)]))[1] == []


def test_invalid_values_do_not_change_the_median():
    broken = [_update(client, torch.nan) for client in (0, 1)]
    assert _clients(_check([*broken, _update(2), _update(3), _update(4, 11.0)])) == ([2, 3], [0, 1, 4])


def test_both_updates_of_a_client_that_answers_twice_are_refused():
    updates = [_update(0), _update(1), _update(1, 2.0)]
    for order in (updates, updates[::-1]):
        checked = _check(order)
        assert _clients(checked) == ([0], [1])
        assert checked.refused[0].reason == "It answered 2 times."


def test_a_replayed_update_does_not_exclude_its_client():
    checked = _check([_update(1, round=2), _update(1)])
    assert _clients(checked) == ([1], [1])


def test_extras_are_checked_by_the_stage():
    updates = [_update(0, extras={"mean": torch.zeros(3)}), _update(1, extras={"secret": torch.zeros(3)})]
    checked = _check(updates)
    assert _clients(checked) == ([0], [1])
    assert checked.refused[0].reason == "Unexpected extra tensor."


def test_a_stage_accepts_no_extras_by_default():
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
    one, other = _check(updates), _check(updates[::-1])
    assert _clients(one) == _clients(other) == ([0, 2, 4], [1, 3, 7])
    assert one.refused == other.refused


def test_no_updates_are_not_an_error():
    assert _check([]) == ((), ())


def test_checking_does_not_change_weights_in_double_precision():
    sent = {"a": torch.zeros(2, 3, dtype=torch.float64)}
    stage = replace(STAGE, shared=("a",))
    updates = [
        Update(client, "joint", 3, 7, 0.5, {"a": torch.ones(2, 3, dtype=torch.float64)})
        for client in range(3)
    ]
    sent["a"].fill_(5.0)
    checker_for(stage, [Task(client, "joint", 3, sent) for client in range(3)], 10.0).check(updates)
    assert all(torch.equal(update.weights["a"], torch.ones(2, 3).double()) for update in updates)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_single_value_that_is_not_finite_is_detected(value, kind):
    weights = torch.zeros(4, 5, dtype=kind)
    weights[2, 3] = value
    checked = _check([_update(0, extras={"mean": weights}), _update(1, extras={"mean": torch.zeros(0)})])
    assert _clients(checked) == ([1], [0])
