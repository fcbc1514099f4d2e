"""Whole rounds by each rule of aggregation, with a client that reverses its updates."""

from dataclasses import replace

import pytest
import torch

from fedmcc.federation.aggregation import AGGREGATIONS
from fedmcc.federation.engines import Engine
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import equal_states

STAGE = Stage(name="head", rounds=1, epochs=1, trained=("a",), shared=("a",))


class Drifting(Engine):
    """An engine whose clients add pseudo-random numbers to what they receive; the last one is hostile."""

    def __init__(self, order=1):
        self.order = order

    def run(self, stage, tasks):
        for task in tasks[:: self.order]:
            draw = torch.Generator().manual_seed(10 * task.round + task.client)
            sent = task.unpacked().weights
            times = -9 if task.client == 4 else 1
            weights = {
                name: value + times * (1 + torch.rand(value.shape, generator=draw)) / 8
                for name, value in sent.items()
            }
            update = Update(task.client, stage.name, task.round, 10 + task.client, 0.5, weights)
            yield update.packed() if task.half else update

    def commit(self, accepted):
        pass


def _trained(name, order=1, half=False, progress=None, count=3):
    stage = replace(STAGE, rounds=count, shared=("a",))
    start = Progress({"a.weight": torch.zeros(40, 3), "a.bias": torch.ones(7)})
    policy = Policy(Federation(aggregation=name, half=half))
    events = rounds(stage, progress or start, Drifting(order), range(5), policy)
    return [event.progress for event in events if isinstance(event, Round)]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_order_of_answers_and_interruptions_change_no_bit(name, half):
    *_, second, last = _trained(name, half=half)
    assert equal_states(_trained(name, -1, half)[-1].model, last.model)
    assert equal_states(_trained(name, half=half, progress=second)[-1].model, last.model)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["guarded", "median", "trimmed", "krum", "geometric"])
def test_a_flipped_update_does_not_reverse_training_for_three_rounds(name, half):
    """Honest clients add 1/8 to 1/4 in every round."""
    model = _trained(name, half=half)[-1].model
    assert (model["a.weight"] > 0.25).all()
    assert (_trained("mean", half=half)[-1].model["a.weight"] < 0).all()
