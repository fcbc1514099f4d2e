import filecmp

import pytest

from fedmcc.config import load, parse
from fedmcc.methods.fedmcc import FedMCC
from fedmcc.runs import build, experiment, pacing
from fedmcc.runs.pacing import Budget, Replanned, revised, steps_within
from fedmcc.runs.schedule import Schedule

TINY = {
    "clusters": 2,
    "device": "cpu",
    "threads": 1,
    "data": {"name": "synthetic", "samples": 32, "size": 8},
    "encoder": {"width": 2},
    "training": {"batch_size": 16},
    "method": {"rounds": 6},
}


@pytest.mark.parametrize(
    ("stage", "round", "possible", "expected"),
    [
        ("representation", 5, 35, None),  # as planned
        ("representation", 5, 32, None),  # nearly
        ("representation", 4, 16, 20),  # half as fast
        ("representation", 16, 0, 16),  # late: what is done stays
        ("representation", 4, 76, 80),  # twice as fast
        ("representation", 4, 999, 300),  # never more
        ("clusters", 1, 0, None),  # nothing is trained
    ],
)
def test_the_rounds_are_those_done_and_those_possible(stage, round, possible, expected):
    changed = revised(FedMCC(rounds=40), {"stage": stage, "round": round}, possible)
    assert (changed and changed.rounds) == expected


def test_epochs_left_follow_from_the_last_ones_and_leave_time_for_the_rest(monkeypatch):
    now = iter([0.0, 10.0, *range(30, 131, 20)])
    monkeypatch.setattr(pacing.time, "monotonic", lambda: next(now))
    budget = Budget(Schedule(64, 40, 10.0, pass_seconds=0.0), seconds=300.0, end=300.0)
    assert budget.epochs_left() is None
    assert budget.epochs_left() == 26  # (300 - 10 - 30) / 10
    for _ in range(5):
        budget.epochs_left()
    assert (
        budget.epochs_left() == 5
    )  # the last six were twice as slow, and so is the rest: (300 - 130 - 60) / 20


@pytest.mark.slow
def test_a_run_on_a_slow_machine_is_shortened_and_its_configuration_repeats_it(tmp_path):
    budget = Budget(Schedule(8, 6, 1e9, 0.0), seconds=0.0, end=0.0)  # it should have ended long ago
    run = experiment.start_run(build.prepare(parse(TINY)), tmp_path / "first")
    events = list(steps_within(build.prepare(load(run.config_file)), run, budget))
    assert any(isinstance(event, Replanned) for event in events)
    done = [(row["stage"], row["round"]) for row in run.rows()][:-3]  # three stages train nothing
    assert done == [("representation", 1), ("representation", 2)]  # the time is first known after two
    again = experiment.run(load(run.config_file), tmp_path / "second")
    assert [(row["stage"], row["round"]) for row in again.rows()][:-3] == done
    assert filecmp.cmp(run.model_file, again.model_file, shallow=False)
