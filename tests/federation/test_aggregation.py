"""Rules of aggregation against slow computations on plain vectors, and what one hostile client can do."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.federation import aggregation
from fedmcc.federation.aggregation import AGGREGATIONS
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.privacy import Privacy, PrivateAggregator
from fedmcc.messages import Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import equal_states, mean
from fedmcc.runs.resolve import check

STAGE = Stage(name="head", rounds=1, epochs=1, trained=("a",), shared=("a",))
SHAPES = {"a.weight": (4, 3), "a.running_mean": (5,), "a.running_var": (5,)}
ROBUST = sorted(AGGREGATIONS.keys() - {"mean"})
WEIGHTS = (30.0, 10.0, 20.0, 25.0, 15.0)


def _state(draw, step=1.0):
    """Positive values, so that variances are valid."""
    values = {name: 5 + step * torch.rand(shape, generator=draw) for name, shape in SHAPES.items()}
    return {**values, "a.steps": torch.tensor(4)}


def _states(count=5, seed=0):
    """Honest clients: a common change and a deviation of each."""
    draw = torch.Generator().manual_seed(seed)
    sent = _state(draw)
    common = {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}
    states = [
        {
            name: sent[name] + common[name] + 0.3 * torch.randn(shape, generator=draw)
            for name, shape in SHAPES.items()
        }
        | {"a.steps": torch.tensor(9)}
        for _ in range(count)
    ]
    return states, sent


def _vector(state):
    return np.concatenate([state[name].double().numpy().ravel() for name in SHAPES])


def _hostile(state, sent, how):
    """The state of a client that reverses, enlarges or replaces its change."""
    change = {name: state[name] - sent[name] for name in SHAPES}
    new = {
        "flipped": lambda name: sent[name] - 9 * change[name],
        "huge": lambda name: sent[name] + 1e30 * change[name],
        "noise": lambda name: (
            sent[name] + 50 * torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(3))
        ),
        "constant": lambda name: torch.zeros(SHAPES[name]) - 77,
    }[how]
    return {**{name: new(name) for name in SHAPES}, "a.steps": torch.tensor(2**60)}


def test_the_median_is_that_of_every_coordinate():
    for count in (1, 2, 4, 5):
        states, sent = _states(count)
        expected = np.median([_vector(state) for state in states], axis=0)
        assert _vector(aggregation.median(states, WEIGHTS[:count], sent)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("count", "trim"), [(2, 0), (3, 1), (5, 1), (10, 2)])
def test_the_trimmed_mean_leaves_out_both_ends_of_every_coordinate(count, trim):
    states, sent = _states(count)
    columns = np.transpose([_vector(state) for state in states])
    expected = [np.mean(sorted(column)[trim : count - trim]) for column in columns]
    result = aggregation.trimmed(states, [1.0] * count, sent)
    assert _vector(result) == pytest.approx(np.array(expected), rel=1e-6)


def test_clipped_shortens_changes_to_the_median_norm():
    states, sent = _states()
    states[2] = _hostile(states[2], sent, "flipped")
    changes = [_vector(state) - _vector(sent) for state in states]
    limit = sorted(math.dist(change, np.zeros_like(change)) for change in changes)[2]
    short = [change * min(1, limit / np.linalg.norm(change)) for change in changes]
    expected = _vector(sent) + np.average(short, axis=0, weights=WEIGHTS)
    assert _vector(aggregation.clipped(states, WEIGHTS, sent)) == pytest.approx(expected, rel=1e-6)


def test_krum_is_the_mean_of_the_clients_closest_to_the_others():
    states, sent = _states()
    states[3] = _hostile(states[3], sent, "noise")
    vectors = [_vector(state) for state in states]
    scores = [
        sum(sorted(math.dist(one, other) ** 2 for j, other in enumerate(vectors) if j != k)[:2])
        for k, one in enumerate(vectors)
    ]
    kept = [k for k in range(5) if scores[k] < max(scores)]
    expected = np.average([vectors[k] for k in kept], axis=0, weights=[WEIGHTS[k] for k in kept])
    assert 3 not in kept
    assert _vector(aggregation.krum(states, WEIGHTS, sent)) == pytest.approx(expected, rel=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances():
    states, sent = _states()
    vectors = np.array([_vector(state) for state in states])

    def total(point):
        return np.dot(WEIGHTS, np.linalg.norm(vectors - point, axis=1))

    found = _vector(aggregation.geometric(states, WEIGHTS, sent))
    assert total(found) <= minimize(total, vectors.mean(axis=0)).fun * (1 + 1e-6)


def test_guarded_limits_every_tensor_and_leaves_out_who_opposes_the_others():
    states, sent = _states()
    states[1] = _hostile(states[1], sent, "flipped")
    states[4]["a.running_var"] = sent["a.running_var"] + 100  # agrees in everything else
    change = {name: [state[name].double() - sent[name] for state in states] for name in SHAPES}
    for name, values in change.items():
        limit = 3 * sorted(float(value.norm()) for value in values)[2]
        values[4] = values[4] * min(1, limit / float(values[4].norm()))
        shares = [0 if k == 1 else weight / (sum(WEIGHTS) - WEIGHTS[1]) for k, weight in enumerate(WEIGHTS)]
        expected = sent[name] + sum(share * value for share, value in zip(shares, values, strict=True))
        found = aggregation.guarded(states, WEIGHTS, sent)[name]
        assert torch.allclose(found.double(), expected, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_guarded_is_bit_identical_to_the_mean_of_honest_clients(count):
    states, sent = _states(count)
    states[0]["a.steps"] = torch.tensor(11)  # one has more images than the others
    weights = [float(k + 1) for k in range(count)]
    assert equal_states(aggregation.guarded(states, weights, sent), mean(states, weights, sent))


@pytest.mark.parametrize("how", ["flipped", "huge", "noise", "constant"])
def test_cosines_to_the_others_are_those_of_the_directions_written_out(how):
    states, sent = _states()
    states[1] = _hostile(states[1], sent, how)
    names = [name for name in SHAPES if "running" not in name]
    changes = torch.stack([torch.cat([(s[n].double() - sent[n]).flatten() for n in names]) for s in states])
    directions = changes / changes.norm(dim=1, keepdim=True)
    others = directions.sum(dim=0) - directions
    expected = torch.nn.functional.cosine_similarity(directions, others, dim=1)
    squares = aggregation.squared_lengths(states, sent)
    found = aggregation._cosines(states, sent, {n: (squares[n], torch.ones(5).double()) for n in names})
    assert found == pytest.approx(expected.tolist(), abs=1e-9)


def test_clients_with_unrelated_changes_all_count():
    draw = torch.Generator().manual_seed(0)
    changes = torch.randn(5, 1000, generator=draw, dtype=torch.float64)
    assert aggregation.agreeing(changes @ changes.T) == [0, 1, 2, 3, 4]


def test_a_majority_stays_whatever_the_clients_send():
    for signs in itertools.product((-1.0, 1.0), repeat=5):
        changes = torch.tensor(signs, dtype=torch.float64)[:, None]
        kept = aggregation.agreeing(changes @ changes.T)
        assert [signs[k] for k in kept] == [math.copysign(1, sum(signs))] * len(kept)
        assert len(kept) >= 3


@pytest.mark.parametrize("how", ["flipped", "huge", "noise", "constant"])
@pytest.mark.parametrize("name", ROBUST)
def test_one_hostile_client_of_five_moves_the_result_less_than_the_clients_themselves_move(name, how):
    states, sent = _states()
    honest = _vector(mean(states[:4], [1.0] * 4, sent))
    states[4] = _hostile(states[4], sent, how)
    combined = AGGREGATIONS[name](states, [1.0] * 5, sent)
    typical = math.dist(honest, _vector(sent))
    assert math.dist(_vector(combined), honest) < typical
    assert combined["a.steps"] < 20
    assert (combined["a.running_var"] >= 0).all()


def test_the_mean_does_not_withstand_one_hostile_client():
    states, sent = _states()
    honest = _vector(mean(states[:4], [1.0] * 4, sent))
    states[4] = _hostile(states[4], sent, "flipped")
    assert math.dist(_vector(mean(states, [1.0] * 5, sent)), honest) > math.dist(honest, _vector(sent))


@pytest.mark.parametrize("name", ROBUST)
def test_variances_stay_valid_if_the_majority_sends_negative_ones(name):
    states, sent = _states()
    for state in states:
        state["a.running_var"] -= 100
    assert (AGGREGATIONS[name](states, WEIGHTS, sent)["a.running_var"] >= 0).all()


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_one_client_and_equal_clients_keep_their_weights(name):
    (state,), sent = _states(1)
    for count in (1, 2, 3, 7):
        assert equal_states(AGGREGATIONS[name]([state] * count, [2.0] * count, sent), state)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_large_tensors_in_channels_last_layout_are_combined_like_small_ones(name):
    draw = torch.Generator().manual_seed(0)
    values = [torch.randn(300, 9, 8, 8, generator=draw) for _ in range(6)]
    sent, *states = ({"w": value.to(memory_format=torch.channels_last)} for value in values)
    found = AGGREGATIONS[name](states, WEIGHTS, sent)["w"]
    rows = {"w": values[0][7:9]}, [{"w": value[7:9]} for value in values[1:]]
    if name in ("mean", "median", "trimmed"):  # other rules depend on the whole tensor
        assert torch.equal(found[7:9], AGGREGATIONS[name](rows[1], WEIGHTS, rows[0])["w"])
    assert found.is_contiguous(memory_format=torch.channels_last)


def _updates(states, samples):
    return [
        Update(k, "head", 1, count, None, state)
        for k, (state, count) in enumerate(zip(states, samples, strict=True))
    ]


def test_a_client_that_claims_many_images_counts_as_twice_the_median():
    states, sent = _states()
    limited = Policy().at_server(STAGE).combine(_updates(states, [10, 2**53, 20, 30, 20]), sent)
    stated = Policy().at_server(STAGE).combine(_updates(states, [10, 40, 20, 30, 20]), sent)
    assert equal_states(limited.weights, stated.weights)


def test_with_mean_every_image_counts():
    states, sent = _states()
    policy = Policy(Federation(aggregation="mean"))
    combined = policy.at_server(STAGE).combine(_updates(states, [10, 10**6, 20, 30, 20]), sent)
    assert equal_states(combined.weights, mean(states, [10.0, 1e6, 20.0, 30.0, 20.0], sent))


def test_clipped_updates_are_averaged_unless_another_rule_is_set():
    private = PrivateAggregator(Privacy(clip=1.0))
    assert Policy(aggregator=private).at_server(STAGE).average is mean
    policy = Policy(Federation(aggregation="median"), aggregator=private)
    assert policy.at_server(STAGE).average is aggregation.median
    states, sent = _states()
    states[0] = _hostile(states[0], sent, "flipped")
    updates = _updates(states, [10] * 5)
    combined = private.combine(policy.at_server(STAGE), updates, sent, 1).weights
    assert math.dist(_vector(combined), _vector(sent)) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "medain"}, "Did you mean 'median'"),
        ({"samples_limit": 0.5}, "federation.samples_limit is 0.5: give 1 or more"),
        ({"samples_limit": math.nan}, "federation.samples_limit is nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        Federation(**options)


def test_counts_do_not_depend_on_a_hostile_majority_of_claims_below_half():
    updates = [Update(k, "head", 1, count, None, {}) for k, count in enumerate((8, 9, 10, 10**9, 10**9))]
    assert replace(STAGE, samples_limit=2.0).counts(updates) == [8, 9, 10, 20, 20]


def test_noise_is_refused_with_a_rule_that_is_not_the_mean():
    table = {"clusters": 2, "method": {"name": "fedmcc"}, "privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(InputError, match=r"privacy.noise protects only a mean of updates, but .* 'median'"):
        check(parse({**table, "federation": {"aggregation": "median"}}))


def test_guarded_averaging_combines_scalars_too():
    sent = {"a": torch.zeros(()), "b": torch.zeros(2)}
    states = [{"a": torch.tensor(float(k)), "b": torch.tensor([k, 1.0])} for k in (1, 2, 3)]
    combined = AGGREGATIONS["guarded"](states, [1.0, 1.0, 1.0], sent)
    torch.testing.assert_close(combined["a"], torch.tensor(2.0))
