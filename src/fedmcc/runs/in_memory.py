"""Training without a run directory, for programs that keep the result in memory."""

from contextlib import nullcontext
from typing import Any, NamedTuple

from fedmcc.data.progress_bar import progress_counter
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.networks.prototypes import trim
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment
from fedmcc.runs.cluster_choice import chosen_clusters, describe


class Trained(NamedTuple):
    """The loss of each round that trained something, and how the number of clusters was chosen, if it was."""

    losses: list[float]
    choice: dict[str, Any] | None


def train_in_memory(experiment: Experiment, bar: bool = False) -> Trained:
    """Run all rounds and load the final network into the experiment; `bar` shows progress on a terminal."""
    losses: list[float] = []
    progress = Progress(detached(experiment.net.state_dict()))
    config, total = experiment.config, sum(stage.rounds for stage in experiment.stages)
    policy = experiment.policy(config.privacy.new_secret(config.general.seed))
    with experiment.engine as engine, progress_counter("rounds", total) if bar else nullcontext() as advance:
        for stage in experiment.stages:
            for event in rounds(stage, progress, engine, experiment.clients, policy):
                if isinstance(event, Round):
                    progress = event.progress
                    losses += [] if event.loss is None else [event.loss]
                    if advance is not None:
                        advance(1)
    copy_into(experiment.net, progress.model)
    trim(experiment.net)
    chosen = chosen_clusters(experiment.net, config)
    return Trained(losses, None if chosen is None else describe(progress.extras, chosen))
