"""Rounds in which one client sends extreme values: the others' average is the result, and nothing raises."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedmcc.federation.engines import Engine
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage

MODEL = {"part.a": torch.ones(4), "part.n": torch.tensor(3)}


@dataclass(frozen=True, kw_only=True)
class Plain(Stage):
    name: str = "joint"
    rounds: int = 1
    epochs: int = 1
    trained: tuple[str, ...] = ("part",)
    shared: tuple[str, ...] = ("part",)


class Faulty(Plain):
    """A stage whose server's step fails on large numbers, by an error or by its result."""

    def combine(self, updates, model):
        largest = max(update.weights["part.a"].max() for update in updates)
        if largest > 3:
            raise ValueError("no eigenvalues")
        return Aggregate({"part.a": MODEL["part.a"] / (largest < 2)}, {})


class Fixed(Engine):
    """An engine whose clients send these updates, a list for each attempt."""

    def __init__(self, *attempts, samples=None):
        self.attempts, self.committed, self.known = list(attempts), [], samples or {}

    def samples(self, client):
        return self.known.get(client)

    def run(self, stage, tasks):
        return iter(self.attempts.pop(0))

    def commit(self, accepted):
        self.committed.append(list(accepted))


def _update(client, value=1.5, **fields):
    weights = {"part.a": torch.full((4,), value), "part.n": torch.tensor(4)}
    return replace(Update(client, "joint", 1, 10, 0.5, weights), **fields)


def _round(engine, stage=None, clients=2, **options):
    events = rounds(stage or Plain(), Progress(MODEL), engine, range(clients), Policy(Federation(**options)))
    (result,) = [event for event in events if isinstance(event, Round)]
    return result


ATTACKS = {
    "a loss whose mean overflows": {"loss": 1.7e308},
    "a loss whose mean overflows downwards": {"loss": -1.7e308},
    "2^53 images": {"samples": 2**53},
    "an update moved by 1e30": {"weights": {"part.a": torch.full((4,), 1e30), "part.n": torch.tensor(4)}},
    "an update moved by 1e17": {"weights": {"part.a": torch.full((4,), -1e17), "part.n": torch.tensor(4)}},
    "a counter at its end": {"weights": {"part.a": torch.ones(4), "part.n": torch.tensor(2**63 - 1)}},
    "a negative counter": {"weights": {"part.a": torch.ones(4), "part.n": torch.tensor(-1)}},
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_of_two_clients_the_hostile_one_is_refused(attack):
    result = _round(Fixed([_update(0), _update(1, **attack)]))
    assert [refused.client for refused in result.refused] == [1]
    assert torch.equal(result.progress.model["part.a"], torch.full((4,), 1.5))
    assert result.loss == 0.5


def test_a_client_that_reports_more_images_than_the_engine_knows_is_refused():
    result = _round(Fixed([_update(0), _update(1, samples=10_000)], samples={0: 10, 1: 10}))
    assert [update.client for update in result.updates] == [0]
    assert result.refused[0].reason == "It reports 10000 images, but it joined with 10."


def test_a_client_above_the_operators_limit_of_images_is_refused():
    result = _round(Fixed([_update(0), _update(1, samples=11)]), max_samples=10)
    assert [refused.client for refused in result.refused] == [1]


def test_the_largest_accepted_values_give_finite_results():
    updates = [_update(client, 1e18, samples=10**9, loss=1e9) for client in range(2)]
    result = _round(Fixed(updates), norm_limit=torch.inf)
    assert result.loss == pytest.approx(1e9)
    assert result.progress.model["part.a"].tolist() == pytest.approx([1e18] * 4)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (3.5, r"\(ValueError: no eigenvalues\)\."),
        (2.5, r"\(ArithmeticError: the new part\.a is not finite"),
    ],
)
def test_updates_that_cannot_be_combined_fail_the_round_with_a_sentence(value, sentence):
    engine = Fixed(*([_update(0, value)] for _ in range(2)))
    with pytest.raises(
        RoundFailedError, match=f"Round 1 .* failed 2 times: .* cannot be combined {sentence}"
    ):
        _round(engine, Faulty(), attempts=2)
    assert engine.committed == [[], []]


def test_a_round_is_repeated_if_its_updates_cannot_be_combined():
    engine = Fixed([_update(0, 3.5)], [_update(0, 1.5)])
    result = _round(engine, Faulty(), clients=1)
    assert (result.attempt, engine.committed) == (2, [[], [0]])
    assert torch.equal(result.progress.model["part.a"], MODEL["part.a"])


def test_a_model_that_half_precision_cannot_hold_fails_the_round():
    class TooLarge(Plain):
        def combine(self, updates, model):
            return Aggregate({"part.a": torch.full((4,), 7e4)}, {})

    engine, stage = Fixed([_update(0).packed()]), TooLarge()
    with pytest.raises(RoundFailedError, match=r"part\.a is not finite"):
        _round(engine, stage, clients=1, attempts=1, half=True)
