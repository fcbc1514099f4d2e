import numpy as np
import pytest
from scipy.special import softmax

from fedmcc.evaluation.calibration import fit_temperature, temper


def _soft(draw, count, clusters, sharpness):
    return softmax(sharpness * draw.normal(size=(count, clusters)), axis=1)


def test_tempered_assignments_are_softmax_of_scaled_logarithms():
    soft = _soft(np.random.default_rng(0), 20, 5, 3)
    np.testing.assert_allclose(temper(soft, 4.0), softmax(np.log(soft) / 4, axis=1), rtol=1e-6)
    assert temper(soft, 1.0) is soft


def test_the_temperature_of_clusters_drawn_from_tempered_assignments_is_found():
    draw = np.random.default_rng(1)
    soft = _soft(draw, 5000, 6, 8)
    others = np.array([draw.choice(6, p=row) for row in temper(soft, 5.0)])
    assert fit_temperature(soft, others) == pytest.approx(5, rel=0.1)


def test_mean_confidence_is_the_rate_of_agreement():
    draw = np.random.default_rng(2)
    clusters = draw.integers(0, 4, 3000)
    soft = np.full((3000, 4), 1e-9)
    soft[np.arange(3000), clusters] = 1 - 3e-9
    others = np.where(draw.random(3000) < 0.6, clusters, (clusters + 1) % 4)
    confidence = temper(soft, fit_temperature(soft, others)).max(axis=1).mean()
    assert confidence == pytest.approx((others == clusters).mean(), abs=0.02)


def test_assignments_that_other_views_contradict_become_uniform():
    draw = np.random.default_rng(3)
    soft = _soft(draw, 500, 10, 50)
    others = draw.integers(0, 10, 500)
    assert temper(soft, fit_temperature(soft, others)).max() < 0.2


def test_few_images_do_not_make_assignments_certain():
    soft = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    assert 0.6 < temper(soft, fit_temperature(soft, np.array([0, 1, 0]))).max() < 0.95
