"""No limit refuses what a client trains honestly, alone or beside others, also at a high learning rate."""

import pytest
import torch

from fedmcc.data.synthetic import Synthetic
from fedmcc.federation.policy import Federation
from fedmcc.federation.update_checks import Limits, checker_for
from fedmcc.messages import Task, Update
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import preset

IMAGES, STEPS = 16, 8
TRAININGS = [
    ("batch", Training(learning_rate=1e-2)),
    ("group", Training(optimizer="sgd", learning_rate=3e-3)),
]


@pytest.mark.parametrize(("norm", "training"), TRAININGS, ids=["adam", "sgd"])
def test_an_honest_update_is_accepted(case, norm, training):
    net, stage = case.build(norm)
    sent, loss = detached(select(net.state_dict(), stage.shared)), None
    if stage.trained:
        optimizer = training.build_optimizer(trainable(net, stage), stage.learning_rate_factor)
        *_, loss = train(net, stage, [case.batch(IMAGES)] * STEPS, optimizer)
    images = torch.from_numpy(Synthetic(samples=IMAGES, size=8, channels=1).load().images)
    extras = detached(stage.extras(net, preset("digits").plain(images).split(8)))
    weights = detached(select(net.state_dict(), stage.shared))
    update = Update(0, stage.name, 1, IMAGES, loss, weights, extras)
    limits = Limits(Federation().norm_limit)
    checker = checker_for(stage, [Task(0, stage.name, 1, sent)], limits, lambda client: IMAGES)
    assert checker.check([update]).refused == ()
