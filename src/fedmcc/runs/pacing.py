"""Keeps and uses the time of a scheduled run: as its epochs become slower or faster, their number changes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedmcc.config import dump
from fedmcc.runs.build import Experiment
from fedmcc.runs.directory import Row, Run
from fedmcc.runs.experiment import Finished, Plan, Scored, plan, steps
from fedmcc.runs.schedule import MAX_EPOCHS, MIN_EPOCHS, PASSES, TOO_FEW, Schedule
from fedmcc.storage.atomic_files import write_atomically
from fedmcc.training.loop import Step

TOLERANCE = 0.2  # of the epochs that are left, or of all for more of them: a smaller change is not made
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
    times: list[float] = field(default_factory=list)  # when each epoch ended

    def epochs_left(self) -> int | None:
        """The number of further epochs for which there is time; None until an epoch was timed."""
        self.times.append(time.monotonic())
        return possible_epochs(self.schedule, self.seconds, self.end, self.times)


def possible_epochs(schedule: Schedule, seconds: float, end: float, times: Sequence[float]) -> int | None:
    """The number of further epochs for which there is time; None until an epoch was timed.

    The mean of all epochs so far is expected of the next ones, and passes over the images take as much longer
    as epochs do. The mean of a few epochs would end the training if other programs use the machine for a
    moment.
    """
    if len(times) < 2:
        return None
    pace = (times[-1] - times[0]) / (len(times) - 1)
    passes = PASSES * schedule.pass_seconds / schedule.epoch_seconds  # in epochs
    return max(0, int((end - times[-1] - REST_SHARE * seconds) / pace - passes))


def steps_within(
    experiment: Experiment, run: Run, budget: Budget | None
) -> Iterator[Step | Scored | Finished | Replanned]:
    """Run an experiment in the time of a budget, if there is one.

    `method.rounds` is changed as needed, also in the configuration of the run: to run it repeats the training
    bit for bit.
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
    """The method with the possible further rounds after this one; None if about as many are planned.

    Time that is left after the last round of a plan is used for further rounds.
    """
    if row["stage"] not in [stage.name for stage in method.stages() if stage.trained]:
        return None
    done = row["round"]
    total = min(MAX_EPOCHS, done + possible)
    more, left = total - method.rounds, method.rounds - done
    if abs(more) <= max(1, TOLERANCE * (method.rounds if more > 0 and left else left)):
        return None
    return replace(method, rounds=total)


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
    sentence = f"There is time for {method.rounds} epochs instead of {before.rounds}."
    if method.rounds < MIN_EPOCHS <= before.rounds:
        sentence += f" {TOO_FEW}"
    return Replanned(plan(experiment, run), sentence)
