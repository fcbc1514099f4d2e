"""The bytes of a whole federation: a frozen encoder is sent once, however many stages freeze it."""

import pytest

from fedmcc.config import parse
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import pack
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.runs.build import prepare

pytestmark = pytest.mark.slow  # takes seconds

CLIENTS = range(5)
TABLE = {
    "device": "cpu",
    "threads": 1,
    "clusters": 2,
    "data": {"name": "digits", "limit": 40},
    "encoder": {"width": 4},
    "method": {"name": "fedmcc", "rounds": 3, "hidden": 8},
    "clustering": {"name": "informative", "prototypes": 1.0},
    "partition": {"clients": len(CLIENTS)},
    "training": {"batch_size": 8},
}


def _bytes(state):
    return sum(value.numel() * value.element_size() for value in state.values())


@pytest.mark.parametrize("half", [False, True])
def test_a_client_gets_the_encoder_once_a_training_round_and_once_more(half):
    experiment = prepare(parse({**TABLE, "federation": {"half": half}}))
    engine, state, tasks = experiment.engine, detached(experiment.net.state_dict()), []
    run, progress = engine.run, Progress(state)
    engine.run = lambda stage, given: tasks.extend(given) or run(stage, given)
    for stage in experiment.stages:
        for event in rounds(stage, progress, engine, CLIENTS, experiment.policy(b"")):
            progress = event.progress if isinstance(event, Round) else progress
    encoder = _bytes(select(pack(state) if half else state, ("online.encoder",)))
    for client in CLIENTS:
        sent = [_bytes(select(task.weights, ("online.encoder",))) for task in tasks if task.client == client]
        # representation three times, whitening; then prototypes and clusters
        assert sent == [encoder] * 4 + [0] * 2
