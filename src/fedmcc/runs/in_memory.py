"""Training without a run directory, for programs that keep the result in memory."""

from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment


def train_in_memory(experiment: Experiment) -> list[float]:
    """Run all rounds, load the final network into the experiment, and return the loss of each round."""
    losses: list[float] = []
    progress = Progress(detached(experiment.net.state_dict()))
    config = experiment.config
    policy = experiment.policy(config.privacy.new_secret(config.general.seed))
    with experiment.engine as engine:
        for stage in experiment.stages:
            for event in rounds(stage, progress, engine, experiment.clients, policy):
                if isinstance(event, Round):
                    progress = event.progress
                    losses += [] if event.loss is None else [event.loss]
    copy_into(experiment.net, progress.model)
    return losses
