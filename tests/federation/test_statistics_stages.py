"""Stages that gather statistics ask all clients, so that no client's images are missing from the clusters."""

import logging

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.evaluation.clustering import accuracy
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.methods.informative import InformativeClustering
from fedmcc.methods.mcc import MCC
from fedmcc.numerics.state_dicts import detached
from fedmcc.runs.build import assemble

CLASSES = 5
TABLE = {
    "device": "cpu",
    "threads": 1,
    "clusters": CLASSES,
    "views": {"size": 8},
    "encoder": {"name": "pixels"},
    "method": {"name": "raw"},
    "clustering": {"name": "informative"},
    "partition": {"name": "by_class", "clients": CLASSES},
    "federation": {"fraction": 0.4},
}


def _blobs():
    """Small images of noise around one pattern per class."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 40)
    patterns = draw.uniform(60, 190, (CLASSES, 1, 8, 8))
    images = (patterns[labels] + draw.normal(0, 20, (len(labels), 1, 8, 8))).clip(0, 255)
    return ImageSet(images.astype(np.uint8), labels, tuple("abcde"))


def _federation(silent=()):
    """The rounds of all stages and the final assignments, where some clients never answer."""
    experiment = assemble(parse(TABLE), _blobs())
    engine, progress, done = experiment.engine, Progress(detached(experiment.net.state_dict())), []
    run = engine.run
    engine.run = lambda stage, tasks: run(stage, [task for task in tasks if task.client not in silent])
    for stage in experiment.stages:
        for event in rounds(stage, progress, engine, range(CLASSES), experiment.policy(b"")):
            if isinstance(event, Round):
                progress = event.progress
                done.append(event)
    experiment.net.load_state_dict(progress.model)
    images = experiment.config.views.plain(torch.from_numpy(experiment.images.images))
    return done, experiment.net.online.assign(experiment.net.online.encoder(images)).argmax(dim=1).numpy()


def test_blobs_are_separated_if_two_of_five_clients_take_part_in_a_round(caplog):
    done, assigned = _federation()
    assert [len(round.updates) for round in done] == [CLASSES] * 3
    assert accuracy(_blobs().labels, assigned) == 1.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_client_that_does_not_answer_is_named_in_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        done, _ = _federation(silent=(3,))
    assert [round.dropped for round in done] == [(3,)] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"The images of client 3 are missing from the stage {stage}, and so from the clusters: "
        "no valid update arrived."
        for stage in ("whitening", "prototypes", "clusters")
    ]


@pytest.mark.parametrize(
    ("stage", "expected"), [(MCC().stages()[0], 4), (InformativeClustering().stages()[0], 10)]
)
def test_clients_are_drawn_for_training_and_all_of_them_for_statistics(stage, expected):
    policy = Policy(Federation(fraction=0.4))
    assert len(policy.participants(stage, range(10), round=1, attempt=1)) == expected
