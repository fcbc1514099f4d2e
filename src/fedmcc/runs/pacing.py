"""Keeps the time of a scheduled run: if its epochs become slower or faster, their number is changed."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedmcc.config import dump
from fedmcc.runs.build import Experiment
from fedmcc.runs.directory import Row, Run
from fedmcc.runs.experiment import Finished, Plan, Scored, plan, steps
from fedmcc.runs.schedule import MAX_EPOCHS, PASSES, Schedule
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step

TOLERANCE = 0.15  # of the planned epochs: a smaller difference changes nothing
RECENT = 6  # epochs whose mean duration is expected of the next ones
REST_SHARE = 0.1  # of the whole time, for clustering, scores and the report


class Replanned(NamedTuple):
    """The number of epochs of a run was changed."""

    plan: Plan
    sentence: str


@dataclass(frozen=True)
class Budget:
    """The time of a scheduled run: what was measured before it, its duration, and when it has to end."""

    schedule: Schedule
    seconds: float
    end: float  # of `time.monotonic`
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT + 1))  # of the last epochs

    def epochs_left(self) -> int | None:
        """The number of further epochs for which there is time; None until an epoch was timed."""
        self.times.append(time.monotonic())
        if len(self.times) < 2:
            return None
        pace = (self.times[-1] - self.times[0]) / (len(self.times) - 1)
        slower = max(1.0, pace / self.schedule.epoch_seconds)
        rest = (REST_SHARE * self.seconds + PASSES * self.schedule.pass_seconds) * slower
        return max(0, int((self.end - self.times[-1] - rest) / pace))


def steps_within(
    experiment: Experiment, run: Run, budget: Budget | None
) -> Iterator[Step | Scored | Finished | Replanned]:
    """Run an experiment in the time of a budget, if there is one.

    `method.rounds` is changed as needed, also in the configuration of the run: to run it repeats the
    training bit for bit.
    """
    method: Any = experiment.config.method
    while method is not None:
        experiment = replace(experiment, config=replace(experiment.config, method=method))
        with closing(steps(experiment, run)) as events:
            for event in events:
                yield event
                method = _revised(experiment.config.method, event, budget)
                if method is not None:
                    break
        if method is not None:
            yield _replan(experiment, run, method)


def revised(method: Any, row: Row, possible: int) -> Any:
    """The method with the possible further rounds after this one; None if about as many are planned."""
    if row["stage"] not in {stage.name for stage in method.stages() if stage.trained}:
        return None
    total = min(MAX_EPOCHS, row["round"] + possible)
    return None if abs(total - method.rounds) <= TOLERANCE * method.rounds else replace(method, rounds=total)


def _revised(method: Any, event: object, budget: Budget | None) -> Any:
    if budget is None or not isinstance(event, Scored):
        return None
    possible = budget.epochs_left()
    return None if possible is None else revised(method, event.row, possible)


def _replan(experiment: Experiment, run: Run, method: Any) -> Replanned:
    """Write the configuration with the revised method."""
    before: Any = experiment.config.method
    experiment = replace(experiment, config=replace(experiment.config, method=method))
    write_atomically(run.config_file, dump(experiment.config))
    pace = "slower" if method.rounds < before.rounds else "faster"
    sentence = f"Epochs became {pace}: {method.rounds} instead of {before.rounds} fit in the time."
    return Replanned(plan(experiment, run), sentence)
