from dataclasses import replace

import pytest
import torch

from fedmcc.federation.update_checks import MAX_LOSS, MAX_SAMPLES, Limits, checker_for
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage


class WithMeans(Stage):
    """A stage whose clients may send means."""

    def extras_error(self, update):
        return "" if set(update.extras) <= {"mean"} else "Unexpected extra tensor."


STAGE = WithMeans(name="joint", rounds=9, epochs=2, trained=(), shared=("a", "n"))
SENT = {"a": torch.full((2, 3), 2.0), "n": torch.tensor(4), "frozen": torch.ones(5)}


def _check(updates, limit=10.0, sent=SENT, **options):
    tasks = [Task(client, "joint", 3, sent) for client in range(5)]
    return checker_for(STAGE, tasks, Limits(limit), **options).check(updates)


def _update(client, moved=1.0, **fields):
    weights = {"a": torch.full((2, 3), 2.0 + moved), "n": torch.tensor(9)}
    return replace(Update(client, "joint", 3, 7, 0.5, weights), **fields)


def _clients(checked):
    return [update.client for update in checked.updates], [refused.client for refused in checked.refused]


BAD = {
    "It has no task in this round.": {"client": 7},
    "It answers round 2 of joint, not round 3 of joint.": {"round": 2},
    "It answers round 3 of head, not round 3 of joint.": {"stage": "head"},
    "Its loss is nan.": {"loss": float("nan")},
    "Its loss is beyond 1e+09: -1.7e+308.": {"loss": -1.7e308},
    "Its n is missing.": {"weights": {"a": torch.ones(2, 3)}},
    "It has 'frozen', which is not shared.": {"weights": {**SENT}},
    "Its a has shape (3, 2); expected (2, 3).": {"weights": {**_update(0).weights, "a": torch.ones(3, 2)}},
    "Its n has type torch.int32; expected torch.int64.": {
        "weights": {**_update(0).weights, "n": torch.tensor(4, dtype=torch.int32)}
    },
    "Its a is not finite.": {"weights": {**_update(0).weights, "a": torch.full((2, 3), torch.inf)}},
    "Its a has numbers above 1e+18.": {"weights": {**_update(0).weights, "a": torch.full((2, 3), -1.1e18)}},
    "Its n is negative.": {"weights": {**_update(0).weights, "n": torch.tensor(-1)}},
    "Its n is 1405; it was 4 in the model that was sent.": {  # more than 100 passes per image and epoch
        "weights": {**_update(0).weights, "n": torch.tensor(4 + 100 * 2 * 7 + 1)}
    },
    "Its mean is not finite.": {"extras": {"mean": torch.tensor([1.0, torch.nan])}},
}


@pytest.mark.parametrize("reason", BAD)
def test_an_invalid_update_is_refused_with_its_reason_and_the_others_are_accepted(reason):
    checked = _check([_update(0), replace(_update(1), **BAD[reason]), _update(2)])
    assert [update.client for update in checked.updates] == [0, 2]
    assert [refused.reason for refused in checked.refused] == [reason]


@pytest.mark.parametrize("samples", [0, -1, True, MAX_SAMPLES + 1, 2**53, 10**400])
def test_an_invalid_number_of_images_is_refused(samples):
    checked = _check([_update(0, samples=MAX_SAMPLES), _update(1, samples=samples)])
    assert _clients(checked) == ([0], [1])


def test_a_number_of_images_above_the_operators_limit_is_refused():
    tasks = [Task(client, "joint", 3, SENT) for client in range(2)]
    checked = checker_for(STAGE, tasks, Limits(samples=40)).check(
        [_update(0, samples=40), _update(1, samples=41)]
    )
    assert _clients(checked) == ([0], [1])
    assert checked.refused[0].reason == "It reports 41 images; federation.max_samples allows 40."


def test_a_number_of_images_other_than_the_known_one_is_refused():
    known = {0: 7, 1: 8}
    checked = _check([_update(client, samples=7) for client in range(3)], samples=known.get)
    assert _clients(checked) == ([0, 2], [1])
    assert checked.refused[0].reason == "It reports 7 images, but it joined with 8."


@pytest.mark.parametrize("loss", [MAX_LOSS, -MAX_LOSS, None])
def test_a_loss_within_the_limit_is_accepted(loss):
    assert _clients(_check([_update(0, loss=loss)])) == ([0], [])


@pytest.mark.parametrize(("moved", "refused"), [(10.0, []), (10.1, [4]), (-10.1, [4]), (1e30, [4])])
def test_an_update_beyond_the_limit_times_the_median_is_refused(moved, refused):
    assert _clients(_check([*(_update(client) for client in range(4)), _update(4, moved)]))[1] == refused


def test_half_the_updates_may_be_hostile():
    updates = [_update(0, 0.1), _update(1, 0.15), _update(2, 19.0), _update(3, 19.0)]
    assert _clients(_check(updates)) == ([0, 1], [2, 3])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("moved", "accepted"), [(19.9, True), (20.1, False), (-20.1, False), (1e17, False)])
def test_for_any_number_of_updates_the_norm_of_the_sent_model_is_the_limit(count, moved, accepted):
    """Each number of the sent model is 2: ten times its norm is a change of 20 in each number."""
    checked = _check([_update(client, moved) for client in range(count)])
    assert [update.client for update in checked.updates] == (list(range(count)) if accepted else [])
    assert all("the norm of the sent model, 4.9." in each.reason for each in checked.refused)


def test_two_updates_are_not_compared_with_each_other():
    assert _clients(_check([_update(0, 0.001), _update(1, 19.0)])) == ([0, 1], [])


@pytest.mark.parametrize(("moved", "refused"), [(0.99, []), (1.01, [0])])
def test_a_model_of_zeros_may_move_as_one_of_small_weights(moved, refused):
    sent = {**SENT, "a": torch.zeros(2, 3)}  # ten times 0.1 in each number
    assert _clients(_check([_update(0, moved - 2.0)], sent=sent))[1] == refused


@pytest.mark.parametrize(
    ("sent", "received", "refused"), [(1.0, -1e-6, [0]), (1.0, 0.0, []), (-1.0, -0.9, [])]
)
def test_a_running_variance_must_not_become_negative(sent, received, refused):
    stage, name = replace(STAGE, shared=("norm",)), "norm.running_var"
    tasks = [Task(0, "joint", 3, {name: torch.tensor([2.0, sent])})]
    update = _update(0, weights={name: torch.tensor([2.0, received])})
    assert _clients(checker_for(stage, tasks, Limits()).check([update]))[1] == refused


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


class Careless(Stage):
    """A stage whose check fails on extras that it does not expect."""

    def extras_error(self, update):
        return "" if float(update.extras["mean"]) < 1 else "Its mean is too large."


def test_an_update_that_makes_a_check_fail_is_refused_alone(caplog):
    stage = Careless(name="joint", rounds=9, epochs=1, trained=(), shared=("a", "n"))
    updates = [_update(client, extras={"mean": torch.zeros(1 + client)}) for client in range(2)]
    tasks = [Task(client, "joint", 3, SENT) for client in range(2)]
    with caplog.at_level("DEBUG", logger="fedmcc.federation.update_checks"):
        checked = checker_for(stage, tasks, Limits()).check(updates)
    assert _clients(checked) == ([0], [1])
    assert checked.refused[0].reason == "It cannot be checked (ValueError)."
    assert [record.levelname for record in caplog.records if record.exc_info] == ["DEBUG"]


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
    checker_for(stage, [Task(client, "joint", 3, sent) for client in range(3)], Limits(10.0)).check(updates)
    assert all(torch.equal(update.weights["a"], torch.ones(2, 3).double()) for update in updates)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_single_value_that_is_not_finite_is_detected(value, kind):
    weights = torch.zeros(4, 5, dtype=kind)
    weights[2, 3] = value
    checked = _check([_update(0, extras={"mean": weights}), _update(1, extras={"mean": torch.zeros(0)})])
    assert _clients(checked) == ([1], [0])
