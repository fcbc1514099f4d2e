import filecmp

import pytest

from fedmcc.config import load, parse
from fedmcc.methods.fedmcc import FedMCC
from fedmcc.runs import build, experiment
from fedmcc.runs.pacing import Budget, Replanned, possible_epochs, revised, steps_within
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
        ("representation", 40, 1, None),
        ("representation", 40, 2, 42),  # the plan is done: what is left is used
        ("clusters", 1, 0, None),  # nothing is trained
    ],
)
def test_the_rounds_are_those_done_and_those_possible(stage, round, possible, expected):
    changed = revised(FedMCC(rounds=40), {"stage": stage, "round": round}, possible)
    assert (changed and changed.rounds) == expected


@pytest.mark.parametrize(
    ("times", "epochs"),
    [
        ([0.0], None),
        ([0.0, 10.0], 26),  # (300 - 10 - 30) / 10
        ([0.0, 10.0, 30.0, 50.0, 70.0, 90.0], 10),  # five took 18 seconds each: (300 - 90 - 30) / 18
        ([0.0, 280.0], 0),
        ([0.0, 400.0], 0),
    ],
)
def test_the_possible_epochs_follow_from_the_mean_of_all_and_leave_a_tenth(times, epochs):
    schedule = Schedule(64, 40, 10.0, pass_seconds=0.0)
    assert possible_epochs(schedule, 300.0, 300.0, times) == epochs


def test_passes_over_the_images_take_as_much_longer_as_epochs_do():
    schedule = Schedule(64, 40, 10.0, pass_seconds=2.5)
    assert possible_epochs(schedule, 300.0, 300.0, [0.0, 10.0]) == 26 - 12 / 4
    assert possible_epochs(schedule, 300.0, 300.0, [0.0, 20.0]) == 12 - 12 / 4  # (300 - 20 - 30) / 20 = 12.5


def simulated(epoch_seconds, seconds=300.0):
    """The rounds, and when they end, if an epoch takes so long that starts at a time."""
    now, times, method = 0.0, [], FedMCC(rounds=int(0.9 * seconds))
    schedule, done = Schedule(64, method.rounds, 1.0, 0.0), 0
    while done < method.rounds:
        now, done = now + epoch_seconds(now), done + 1
        times.append(now)
        row = {"stage": "representation", "round": done}
        possible = possible_epochs(schedule, seconds, seconds, times)
        method = (None if possible is None else revised(method, row, possible)) or method
    return method.rounds, now


@pytest.mark.parametrize("burst", [0, 1, 60, 130, 140, 200, 230])
def test_a_burst_of_load_costs_its_time_and_no_more(burst):
    rounds, end = simulated(lambda now: 20.0 if burst <= now < burst + 20 else 1.0)
    assert 267 <= end <= 270 + 1  # nothing is left but the tenth, and an epoch or two
    assert rounds >= 270 - 20 - 3


@pytest.mark.parametrize(
    ("epoch_seconds", "expected"),
    [
        (lambda now: 1.0, 270),
        (lambda now: 0.95, 284),
        (lambda now: 0.5, 300),  # never more
        (lambda now: 3.0, 90),
        (lambda now: 1.0 if now < 100 else 4.0, 100 + 170 / 4),
        (lambda now: 4.0 if now < 100 else 1.0, 100 / 4 + 170),
    ],
)
def test_all_time_is_used_however_fast_epochs_are(epoch_seconds, expected):
    rounds, end = simulated(epoch_seconds)
    assert rounds == pytest.approx(expected, abs=2)
    assert end <= 270 + epoch_seconds(270.0)


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
