from dataclasses import replace

import numpy as np
import pytest

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.data.survey import Survey
from fedmcc.runs import schedule
from fedmcc.runs.schedule import Schedule, choose_size, choose_views, plan_schedule, with_schedule


@pytest.mark.parametrize(
    ("sides", "size"), [([], 64), ([(4000, 3000)] * 3, 64), ([(28, 30)] * 5, 28), ([(3, 2)], 8)]
)
def test_images_are_decoded_as_large_as_they_are_up_to_a_limit(sides, size):
    assert choose_size(sides) == size


def test_views_fit_the_images():
    found = Survey(10, (8, 8), (300, 200), (500, 500), grey=False, duplicates=())
    assert choose_views(found)[0] == "photo"
    assert choose_views(replace(found, grey=True))[0] == "medical"
    assert choose_views(replace(found, grey=True, median=(28, 28)))[0] == "digits"


@pytest.fixture
def measured(monkeypatch):
    """An epoch takes as many seconds as a view has thousands of pixels, and other work none."""
    monkeypatch.setattr(schedule, "_measure", lambda config, images: (config.views.size**2 / 1000, 0.0))


@pytest.mark.parametrize(
    ("seconds", "size", "epochs"),
    [(1000.0, 64, 219), (1e5, 64, 300), (85.0, 48, 33), (20.0, 32, 17), (0.1, 32, 2)],
)
def test_views_shrink_until_enough_epochs_fit(measured, seconds, size, epochs):
    images = ImageSet(np.zeros((10, 3, 64, 64), dtype=np.uint8))
    planned = plan_schedule(parse({"clusters": 2}), images, seconds)
    assert (planned.size, planned.epochs) == (size, epochs)
    if 2 < epochs < 300:
        assert 0.8 * seconds < planned.seconds <= seconds


def test_the_schedule_is_in_the_configuration():
    config = with_schedule(parse({"clusters": 2}), Schedule(48, 30, 1.0, 0.1))
    assert (config.views.size, config.method.rounds, config.evaluation.every) == (48, 30, 8)


def test_a_measurement_is_positive_and_leaves_the_configuration():
    config = parse({"clusters": 2, "encoder": {"width": 2}, "threads": 1, "training": {"batch_size": 8}})
    images = ImageSet(np.random.default_rng(0).integers(256, size=(16, 1, 8, 8), dtype=np.uint8))
    planned = plan_schedule(config, images, 60.0)
    assert planned.epoch_seconds > 0
    assert planned.pass_seconds > 0
    assert planned.size == 8
